#include "common/model/other_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"

namespace stemma {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 17> kNames = {"config.json",
                                                     "generation_config.json",
                                                     "tokenizer_config.json",
                                                     "special_tokens_map.json",
                                                     "added_tokens.json",
                                                     "vocab.json",
                                                     "vocab.txt",
                                                     "merges.txt",
                                                     "chat_template.jinja",
                                                     "chat_template.json",
                                                     "tekken.json",
                                                     "tiktoken.model",
                                                     "spiece.model",
                                                     "sentencepiece.bpe.model",
                                                     "preprocessor_config.json",
                                                     "processor_config.json",
                                                     "video_preprocessor_config.json"};

// Those of them that may name Python code which lies beside them (auto_map).
constexpr std::array<std::string_view, 5> kNamesOfCode = {"config.json", "tokenizer_config.json",
                                                          "preprocessor_config.json", "processor_config.json",
                                                          "video_preprocessor_config.json"};

constexpr uint64_t kConfigBytesMax = 16 << 20;

// tokenizer.json, tokenizer.4.0.0.json, tokenizer.model, tokenizer.model.v3
bool IsTokenizer(std::string_view name) {
  return name.starts_with("tokenizer.") &&
         (name.ends_with(".json") || name == "tokenizer.model" || name.starts_with("tokenizer.model."));
}

// The directory's names, but those that begin with a dot.
absl::StatusOr<std::vector<std::string>> NamesOf(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (!name.starts_with('.')) names.push_back(std::move(name));
  }
  if (error) return ErrnoStatus("list the files of the model directory", directory, error.value());
  return names;
}

// Tells whether the model, its tokenizer or a processor names Python code.
bool HasCode(const std::string& directory) {
  return std::any_of(kNamesOfCode.begin(), kNamesOfCode.end(), [&](std::string_view name) {
    const auto path = ResolvePath(absl::StrCat(directory, "/", std::string(name)));
    if (!path.ok()) return false;
    const auto text = ReadFile(*path, kConfigBytesMax);
    return text.ok() && absl::StrContains(*text, "\"auto_map\"");
  });
}

// Tells whether a file of this name is one; `has_code`: as HasCode.
bool IsOtherFile(std::string_view name, bool has_code) {
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() || IsTokenizer(name) ||
         name.ends_with(".tiktoken") || (has_code && name.ends_with(".py"));
}

// Adds the file NAME of a folder of the directory, if it is one. `folder`: "", or ends with '/'.
absl::Status Add(const std::string& directory, const std::string& folder, const std::string& name, OtherFiles& found) {
  if (const absl::Status valid = CheckFileName(name); !valid.ok()) {
    found.left_out.push_back(absl::StrCat(folder, std::string(valid.message())));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(std::string path, ResolvePath(absl::StrCat(directory, "/", folder, name)));
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    found.left_out.push_back(absl::StrCat(folder, name, " is not a regular file"));
    return absl::OkStatus();
  }
  found.files[absl::StrCat(folder, name)] = std::move(path);
  return absl::OkStatus();
}

absl::Status AddChatTemplates(const std::string& directory, OtherFiles& found) {
  const std::string folder = absl::StrCat(kChatTemplatesFolder, "/");
  ASSIGN_OR_RETURN(const std::string path, ResolvePath(absl::StrCat(directory, "/", kChatTemplatesFolder)));
  std::error_code error;
  if (!fs::is_directory(path, error)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesOf(path));
  for (const std::string& name : names) {
    if (name.ends_with(".jinja")) RETURN_IF_ERROR(Add(directory, folder, name, found));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OtherFiles> FindOtherFiles(const std::string& directory) {
  OtherFiles found;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesOf(directory));
  const bool has_code = HasCode(directory);
  for (const std::string& name : names) {
    if (IsOtherFile(name, has_code)) RETURN_IF_ERROR(Add(directory, "", name, found));
    if (name == kChatTemplatesFolder) RETURN_IF_ERROR(AddChatTemplates(directory, found));
  }
  return found;
}

}  // namespace stemma
