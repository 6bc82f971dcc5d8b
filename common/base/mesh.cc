#include "common/base/mesh.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"

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
    if (axis != "dp" && axis != "tp") {
      return absl::InvalidArgumentError(absl::StrCat("\"", part, "\" names no axis; known: dp and tp, as dp=2,tp=2"));
    }
    if (!seen.insert(axis).second) return absl::InvalidArgumentError(absl::StrCat(axis, " is named twice"));
    if (!number || size < 1 || size > kRanksMax) {
      return absl::InvalidArgumentError(absl::StrCat("\"", part, "\": a size is a number from 1 to ", kRanksMax));
    }
    axis == "dp" ? mesh.set_dp(size) : mesh.set_tp(size);
  }
  return mesh;
}

uint32_t DpSize(const v1::Mesh& mesh) { return std::max(mesh.dp(), 1u); }
uint32_t TpSize(const v1::Mesh& mesh) { return std::max(mesh.tp(), 1u); }

v1::Mesh MakeMesh(const MeshSizes& sizes) {
  v1::Mesh mesh;
  mesh.set_dp(sizes.dp);
  mesh.set_tp(sizes.tp);
  return mesh;
}

bool SameMesh(const v1::Mesh& a, const v1::Mesh& b) { return DpSize(a) == DpSize(b) && TpSize(a) == TpSize(b); }

uint32_t NumRanks(const v1::Mesh& mesh) { return DpSize(mesh) * TpSize(mesh); }

MeshPlace PlaceOf(const v1::Mesh& mesh, uint32_t rank) {
  CHECK_LT(rank, NumRanks(mesh));
  return {rank / TpSize(mesh), rank % TpSize(mesh)};
}

std::string MeshText(const v1::Mesh& mesh) {
  const std::string tp = absl::StrCat("tp=", TpSize(mesh));
  if (TpSize(mesh) == 1) return absl::StrCat("dp=", DpSize(mesh));
  return DpSize(mesh) == 1 ? tp : absl::StrCat("dp=", DpSize(mesh), ",", tp);
}

}  // namespace stemma
