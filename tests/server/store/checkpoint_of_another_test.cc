// Checkpoints of another program's version or of another model, and folders that are none: what a start makes of them.
#include <filesystem>

#include "common/base/error.h"
#include "common/model/families.h"
#include "common/model/model_init.h"
#include "server/store/checkpoint_manifest.h"
#include "server/store/checkpoint_store.h"
#include "tests/common/model/small_configs.h"
#include "tests/server/store/checkpoint_files.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;
using testing::TempFolder;

namespace fs = std::filesystem;

class CheckpointOfAnotherTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_ / ("checkpoints/" + name); }

  const TempFolder folder_;
  const CheckpointStore store_ = *CheckpointStore::Open(folder_.path());
};

// It is whole, and of use to another program: left out, its steps would be given up for good.
TEST_F(CheckpointOfAnotherTest, AManifestOfAnotherVersionIsNoAnswer) {
  ASSERT_THAT(CommitSave(store_, folder_.path(), MakeSave("newer", 1, 1), ""), IsOk());
  std::string text = BytesOf(Path("newer/manifest.json"));
  const std::string version = absl::StrCat("\"version\":", kManifestVersion);
  ASSERT_EQ(text.find(version), text.rfind(version));
  text.replace(text.find(version), version.size(), absl::StrCat("\"version\":", kManifestVersion + 1));
  SetBytes(Path("newer/manifest.json"), Sealed(text));
  EXPECT_THAT(store_.Scan().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("newer/manifest.json"), HasSubstr("use the program that wrote it"))));
}

TEST_F(CheckpointOfAnotherTest, ACheckpointOfAnotherModelIsRefusedByItsFirstDifference) {
  ASSERT_THAT(CommitSave(store_, folder_.path(), MakeSave("mine", 1, 1), ""), IsOk());
  const ModelConfig model = SmallLlama();
  SetBytes(Path("mine/config.json"), ModelConfigJson(model));
  EXPECT_THAT(store_.CheckModel("mine", model), IsOk());
  ModelConfig other = model;
  other.num_layers += 1;
  other.ffn_size += 8;
  const absl::Status status = store_.CheckModel("mine", other);
  EXPECT_EQ(ErrorReason(status), "INVALID_REQUEST");
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("checkpoint mine is of another model"),
                                                                 HasSubstr("differ in num_hidden_layers"))));
}

TEST_F(CheckpointOfAnotherTest, FoldersThatAreNoCheckpointHaveNamesAllTheSame) {
  ASSERT_THAT(CommitSave(store_, folder_.path(), MakeSave("whole", 1, 1), ""), IsOk());
  fs::create_directory(Path("step-2"));
  fs::create_directory(Path(".tmp-x"));
  const auto names = store_.Names();
  ASSERT_THAT(names, IsOk());
  EXPECT_THAT(*names, ::testing::UnorderedElementsAre("whole", "step-2"));
}

}  // namespace
}  // namespace stemma::server
