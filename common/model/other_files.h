// The files of a Hugging Face model directory beside its weights: what whoever loads the model reads, and an export
// copies. By their names alone; contents are not looked at, but for whether the tokenizer has code of its own.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace stemma {

// Chat templates beside the default one, as transformers writes them: NAME.jinja in this folder of the model directory.
inline constexpr char kChatTemplatesFolder[] = "additional_chat_templates";

// File name -> resolved path.
using FilesByName = std::map<std::string, std::string>;

struct OtherFiles {
  FilesByName top;             // config.json, generation, tokenizer, processor; not the index of the weights
  FilesByName chat_templates;  // in kChatTemplatesFolder
};

// `directory`: resolved. Errors: those of the file system, of links that lead nowhere too.
absl::StatusOr<OtherFiles> FindOtherFiles(const std::string& directory);

}  // namespace stemma
