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

constexpr uint64_t kTokenizerConfigBytesMax = 16 << 20;

// tokenizer.json, tokenizer.4.0.0.json, tokenizer.model, tokenizer.model.v3
bool IsTokenizer(std::string_view name) {
  return name.starts_with("tokenizer.") &&
         (name.ends_with(".json") || name == "tokenizer.model" || name.starts_with("tokenizer.model."));
}

// The directory's names that may be a file's; nothing of what begins with a dot.
absl::StatusOr<std::vector<std::string>> NamesOf(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (CheckFileName(name).ok()) names.push_back(std::move(name));
  }
  if (error) return ErrnoStatus("list", directory, error.value());
  return names;
}

bool HasCode(const std::string& directory) {
  const auto path = ResolvePath(absl::StrCat(directory, "/tokenizer_config.json"));
  if (!path.ok()) return false;
  const auto text = ReadFile(*path, kTokenizerConfigBytesMax);
  return text.ok() && absl::StrContains(*text, "\"auto_map\"");
}

// Tells whether a file of this name is one; `has_code`: the tokenizer names Python code (auto_map).
bool IsOtherFile(std::string_view name, bool has_code) {
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() || IsTokenizer(name) ||
         name.ends_with(".tiktoken") || (has_code && name.ends_with(".py"));
}

absl::StatusOr<FilesByName> FindChatTemplates(const std::string& directory) {
  FilesByName templates;
  const std::string folder = absl::StrCat(directory, "/", kChatTemplatesFolder);
  std::error_code error;
  if (!fs::is_directory(folder, error)) return templates;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesOf(folder));
  for (const std::string& name : names) {
    if (!name.ends_with(".jinja")) continue;
    ASSIGN_OR_RETURN(templates[name], ResolvePath(absl::StrCat(folder, "/", name)));
  }
  return templates;
}

}  // namespace

absl::StatusOr<OtherFiles> FindOtherFiles(const std::string& directory) {
  OtherFiles files;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesOf(directory));
  const bool has_code = HasCode(directory);
  for (const std::string& name : names) {
    if (!IsOtherFile(name, has_code)) continue;
    ASSIGN_OR_RETURN(files.top[name], ResolvePath(absl::StrCat(directory, "/", name)));
  }
  ASSIGN_OR_RETURN(files.chat_templates, FindChatTemplates(directory));
  return files;
}

}  // namespace stemma
