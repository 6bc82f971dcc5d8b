#include "common/model/model_fingerprint.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "common/model/model_init.h"
#include "gtest/gtest.h"
#include "tests/common/model/small_configs.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

using testing::IsOk;
using testing::TempFolder;

namespace fs = std::filesystem;

class ModelFingerprintTest : public ::testing::Test {
 protected:
  std::string Make(const ModelInitOptions& options, const ModelConfig& config = SmallLlama()) {
    fs::remove_all(folder_ / "model");
    EXPECT_THAT(WriteRandomModel(config, options, folder_ / "model"), IsOk());
    return Fingerprint();
  }
  std::string Fingerprint() {
    const auto directory = OpenModelDirectory(folder_ / "model");
    EXPECT_THAT(directory.status(), IsOk());
    return directory.ok() ? ModelFingerprint(*directory).value() : "";
  }

  const TempFolder folder_;
};

TEST_F(ModelFingerprintTest, IsOfTheTensorsHoweverTheyAreCutIntoFiles) {
  const std::string whole = Make({.seed = 3});
  EXPECT_EQ(whole.size(), 64u);
  EXPECT_EQ(Make({.seed = 3}), whole);
  EXPECT_EQ(Make({.seed = 3, .max_shard_bytes = 2000}), whole);
}

TEST_F(ModelFingerprintTest, AnotherSeedShapeOrDtypeHasAnother) {
  const std::string one = Make({.seed = 3});
  EXPECT_NE(Make({.seed = 4}), one);
  EXPECT_NE(Make({.seed = 3, .dtype = safetensors::Dtype::kBF16}), one);
  ModelConfig deeper = SmallLlama();
  ++deeper.num_layers;
  EXPECT_NE(Make({.seed = 3}, deeper), one);
}

TEST_F(ModelFingerprintTest, ATensorThatWasTrainedFurtherIsSeen) {
  const std::string before = Make({.seed = 3});
  const std::string path = folder_ / "model/model.safetensors";
  const auto header = safetensors::ReadHeader(path);
  ASSERT_THAT(header.status(), IsOk());
  for (const safetensors::TensorEntry& tensor : header->tensors) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(tensor.begin));
    const auto byte = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(tensor.begin));
    file.put(static_cast<char>(byte ^ 1)).flush();
    EXPECT_NE(Fingerprint(), before) << tensor.name;
    file.seekp(static_cast<std::streamoff>(tensor.begin));
    file.put(byte).flush();
  }
  EXPECT_EQ(Fingerprint(), before);
}

}  // namespace
}  // namespace stemma
