#include "common/base/names.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace stemma {
namespace {

constexpr size_t kMaxNameBytes = 128;

bool IsName(std::string_view name, std::string_view punctuation) {
  if (name.empty() || name.size() > kMaxNameBytes || !absl::ascii_isalnum(static_cast<unsigned char>(name[0]))) {
    return false;
  }
  for (const char c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && punctuation.find(c) == std::string_view::npos)
      return false;
  }
  return name.find("..") == std::string_view::npos;
}

absl::Status RefuseName(std::string_view name, std::string_view characters) {
  return absl::InvalidArgumentError(absl::StrCat("\"", absl::CEscape(std::string(name.substr(0, 80))),
                                                 name.size() > 80 ? "..." : "", "\" is not a valid name: 1 to ",
                                                 kMaxNameBytes, " of ", std::string(characters),
                                                 ", a letter or digit first, no `..`"));
}

}  // namespace

absl::Status CheckRequestId(std::string_view id) {
  return IsName(id, "._/-") ? absl::OkStatus() : RefuseName(id, "A-Z a-z 0-9 . _ / -");
}

absl::Status CheckFileName(std::string_view name) {
  return IsName(name, "._-") ? absl::OkStatus() : RefuseName(name, "A-Z a-z 0-9 . _ -");
}

absl::Status CheckFolderName(std::string_view name) {
  if (!name.empty() && name.front() == '.') name.remove_prefix(1);
  return CheckFileName(name);
}

}  // namespace stemma
