// The files of a Hugging Face model directory beside its weights: what whoever loads the model reads, and exports and
// checkpoints copy. By their names alone; contents are not looked at, but for whether the model, its tokenizer or a
// processor has code of its own.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace stemma {

// Chat templates beside the default one, as transformers writes them: NAME.jinja in this folder of the model directory.
inline constexpr char kChatTemplatesFolder[] = "additional_chat_templates";

// Name in the directory, NAME or additional_chat_templates/NAME -> resolved path.
using FilesByName = std::map<std::string, std::string>;

struct OtherFiles {
  FilesByName files;                  // config.json, generation, tokenizer, processor; not the index of the weights
  std::vector<std::string> left_out;  // which of them are not copied, and why
};

// `directory`: resolved. Errors: those of the file system, of links that lead nowhere too; PermissionDenied - the
// directory, or the folder of templates, may not be listed.
absl::StatusOr<OtherFiles> FindOtherFiles(const std::string& directory);

}  // namespace stemma
