#include "common/base/mesh.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace stemma {

absl::StatusOr<v1::Mesh> ParseMesh(std::string_view text) {
  v1::Mesh mesh;
  std::set<std::string> seen;
  for (const std::string& piece : std::vector<std::string>(absl::StrSplit(std::string(text), ','))) {
    const std::string part(absl::StripAsciiWhitespace(piece));
    const size_t equal = part.find('=');
    const std::string axis = part.substr(0, equal);
    uint32_t size = 0;
    const bool number = equal != std::string::npos && absl::SimpleAtoi(part.substr(equal + 1), &size);
    if (axis != "dp") {
      return absl::InvalidArgumentError(absl::StrCat("\"", part, "\" names no axis; known: dp, as dp=2"));
    }
    if (!seen.insert(axis).second) return absl::InvalidArgumentError(absl::StrCat(axis, " is named twice"));
    if (!number || size < 1 || size > kRanksMax) {
      return absl::InvalidArgumentError(absl::StrCat("\"", part, "\": a size is a number from 1 to ", kRanksMax));
    }
    mesh.set_dp(size);
  }
  return mesh;
}

uint32_t NumRanks(const v1::Mesh& mesh) { return std::max(mesh.dp(), 1u); }

}  // namespace stemma
