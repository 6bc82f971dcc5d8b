// A Hugging Face model directory: config.json, model.safetensors or sharded with model.safetensors.index.json,
// tokenizer files. Checks everything that can be checked without reading weights. Torch-free.
//
// Links (a hub cache's snapshot) are resolved once, here; after that only regular files are read. Index values are file
// names: `/`, `..` are refused.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/model/other_files.h"
#include "common/model/safetensors.h"

namespace stemma {

struct WeightFile {
  std::string file_name;  // "model-00001-of-00002.safetensors"
  std::string path;       // resolved
  safetensors::Header header;
};

struct ModelDirectory {
  std::string path;
  ModelConfig config;
  std::vector<WeightFile> shards;
  bool has_index = false;
  FilesByName other_files;            // those of OtherFiles, and the index: exports and checkpoints copy them
  std::vector<std::string> left_out;  // as OtherFiles has it
};

// Reads config.json: the file itself, or that of a directory. Weights are not looked at. Errors: as OpenModelDirectory.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& path);

// Errors name the file and the field: NotFound (no such directory or file), InvalidArgument (content). Every tensor of
// the config must be there exactly once with its shape and a float dtype, and no other, except what is known to be
// safely ignored (rotary inv_freq buffers, and lm_head.weight of a tied model, which whoever reads weights compares
// with the embedding: worker/model/weights_io.h).
absl::StatusOr<ModelDirectory> OpenModelDirectory(const std::string& path);

// Opens the config and the weights alone: other_files and left_out are empty, and what lies beside the weights may be
// missing. For a checkpoint, of which nothing else is loaded. Errors: as OpenModelDirectory.
absl::StatusOr<ModelDirectory> OpenModelWeights(const std::string& path);

}  // namespace stemma
