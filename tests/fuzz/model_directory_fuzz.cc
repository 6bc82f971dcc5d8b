// A model's directory whose index is the input, or, behind a zero byte, whose config.json is: refused, or each tensor
// of the model stands in one file of the directory.
#include <string>
#include <string_view>
#include <vector>

#include "common/model/model_config.h"
#include "common/model/model_directory.h"
#include "common/model/model_init.h"
#include "common/model/model_tensors.h"
#include "glog/logging.h"
#include "nlohmann/json.hpp"
#include "tests/common/model/small_configs.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/scratch.h"

namespace stemma::fuzz {
namespace {

constexpr const char* kShards[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};

struct Files {
  std::string index;
  std::string shards[2];
};

// The model's tensors in turn in the two files; their bytes are holes.
Files FilesOf(const ModelConfig& config) {
  std::vector<safetensors::TensorEntry> tensors[2];
  nlohmann::json map;
  size_t n = 0;
  for (const TensorSpec& spec : ModelTensors(config)) {
    tensors[n % 2].push_back({.name = spec.name, .shape = spec.shape});
    map[spec.name] = kShards[n++ % 2];
  }
  Files files;
  files.index = nlohmann::json({{"weight_map", map}, {"metadata", {{"total_size", 1}}}}).dump();
  for (size_t i = 0; i < 2; ++i) {
    files.shards[i] = safetensors::MakeHeader(tensors[i], {{"format", "pt"}});
    files.shards[i].resize(tensors[i].back().end);
  }
  return files;
}

struct Directory {
  Directory() {
    const Files files = FilesOf(SmallLlama());
    for (size_t i = 0; i < 2; ++i) scratch.Write(kShards[i], files.shards[i]);
  }
  const Scratch scratch;
};

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds = {FilesOf(SmallLlama()).index};
  for (const ModelConfig& config : SmallConfigs()) seeds.push_back(std::string(1, '\0') + ModelConfigJson(config));
  return seeds;
}

}  // namespace stemma::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stemma;
  static const fuzz::Directory directory;
  static const std::string index = fuzz::FilesOf(SmallLlama()).index, config = ModelConfigJson(SmallLlama());
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const bool is_config = !input.empty() && input[0] == '\0';
  directory.scratch.Write("model.safetensors.index.json", is_config ? std::string_view(index) : input);
  directory.scratch.Write("config.json", is_config ? input.substr(1) : std::string_view(config));
  const auto opened = OpenModelDirectory(directory.scratch.folder());
  if (!opened.ok()) return 0;
  CHECK_GT(opened->config.num_parameters(), 0);
  size_t tensors = 0;
  for (const WeightFile& file : opened->shards) {
    CHECK(file.file_name == fuzz::kShards[0] || file.file_name == fuzz::kShards[1]) << file.file_name;
    tensors += file.header.tensors.size();
  }
  CHECK_GE(tensors, ModelTensors(opened->config).size());
  return 0;
}
