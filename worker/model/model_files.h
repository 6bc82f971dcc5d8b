// The small files of a Hugging Face model that is written: config.json in the dtype of its tensors, and what an index
// says. Called by worker/model's export and by worker/checkpoint, on any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"

namespace stemma::worker {

// Reads a file that is copied, of 256 MiB at the most: a tokenizer of a large vocabulary has some 20 MB. Errors:
// InvalidArgument - it has gone since the model was loaded; those of ReadFile.
absl::StatusOr<std::string> ReadOtherFile(const std::string& path);

// Makes the folder in `folder` that the file `name` lies in, where the name has one, as additional_chat_templates/NAME.
// Errors: those of mkdir; `folder` itself is there.
absl::Status MakeFolderOf(const std::string& folder, const std::string& name);

// Takes float32, float64, bfloat16, float16. Errors: InvalidArgument.
absl::StatusOr<safetensors::Dtype> ParseFileDtype(const std::string& name);

// Both take the content of the file `path` and keep what they do not change, in its order. They were checked when the
// model was loaded, but files change. Errors: InvalidArgument - it is no object any more.
absl::StatusOr<std::string> ConfigWithDtype(const std::string& path, const std::string& content,
                                            safetensors::Dtype dtype);
absl::StatusOr<std::string> IndexWithTotalSize(const std::string& path, const std::string& content, uint64_t bytes);

// Checks that the content of config.json, at `path`, still says what the model was loaded with: weights that are
// written beside another one are another model. Errors: InvalidArgument, which names the first difference.
absl::Status CheckConfigStays(const std::string& path, const std::string& content, const ModelConfig& loaded);

// Returns a new index: which file each tensor is in, and the bytes of all of them.
std::string MakeIndex(const std::map<std::string, std::string>& file_of_tensor, uint64_t bytes);

}  // namespace stemma::worker
