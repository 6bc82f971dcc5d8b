#include "common/base/mesh.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"

namespace stemma {
namespace {

using Setter = void (v1::Mesh::*)(uint32_t);

Setter SetterOf(std::string_view axis) {
  if (axis == "dp") return &v1::Mesh::set_dp;
  if (axis == "pp") return &v1::Mesh::set_pp;
  if (axis == "cp") return &v1::Mesh::set_cp;
  if (axis == "tp") return &v1::Mesh::set_tp;
  return axis == "ep" ? &v1::Mesh::set_ep : nullptr;
}

}  // namespace

absl::StatusOr<v1::Mesh> ParseMesh(std::string_view text) {
  v1::Mesh mesh;
  std::set<std::string> seen;
  for (const std::string& piece : std::vector<std::string>(absl::StrSplit(std::string(text), ','))) {
    const std::string part(absl::StripAsciiWhitespace(piece));
    const size_t equal = part.find('=');
    const std::string axis = part.substr(0, equal);
    uint32_t size = 0;
    const bool number = equal != std::string::npos && absl::SimpleAtoi(part.substr(equal + 1), &size);
    const auto setter = SetterOf(axis);
    if (setter == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", part, "\" names no axis; known: dp, pp, cp, tp and ep, as dp=2,tp=2"));
    }
    if (!seen.insert(axis).second) return absl::InvalidArgumentError(absl::StrCat(axis, " is named twice"));
    if (!number || size < 1 || size > kRanksMax) {
      return absl::InvalidArgumentError(absl::StrCat("\"", part, "\": a size is a number from 1 to ", kRanksMax));
    }
    (mesh.*setter)(size);
  }
  return mesh;
}

uint32_t DpSize(const v1::Mesh& mesh) { return std::max(mesh.dp(), 1u); }
uint32_t PpSize(const v1::Mesh& mesh) { return std::max(mesh.pp(), 1u); }
uint32_t CpSize(const v1::Mesh& mesh) { return std::max(mesh.cp(), 1u); }
uint32_t TpSize(const v1::Mesh& mesh) { return std::max(mesh.tp(), 1u); }
uint32_t EpSize(const v1::Mesh& mesh) { return std::max(mesh.ep(), 1u); }
uint32_t DataRanks(const v1::Mesh& mesh) { return DpSize(mesh) * CpSize(mesh); }
uint32_t RanksOfCopy(const v1::Mesh& mesh) { return PpSize(mesh) * CpSize(mesh) * TpSize(mesh); }

v1::Mesh MakeMesh(const MeshSizes& sizes) {
  v1::Mesh mesh;
  mesh.set_dp(sizes.dp);
  mesh.set_pp(sizes.pp);
  mesh.set_cp(sizes.cp);
  mesh.set_tp(sizes.tp);
  mesh.set_ep(sizes.ep);
  return mesh;
}

bool SameMesh(const v1::Mesh& a, const v1::Mesh& b) {
  return DpSize(a) == DpSize(b) && PpSize(a) == PpSize(b) && CpSize(a) == CpSize(b) && TpSize(a) == TpSize(b) &&
         EpSize(a) == EpSize(b);
}

uint32_t NumRanks(const v1::Mesh& mesh) { return DpSize(mesh) * RanksOfCopy(mesh); }

MeshPlace PlaceOf(const v1::Mesh& mesh, uint32_t rank) {
  CHECK_LT(rank, NumRanks(mesh));
  return {.dp_rank = rank / RanksOfCopy(mesh),
          .pp_rank = rank / (CpSize(mesh) * TpSize(mesh)) % PpSize(mesh),
          .cp_rank = rank / TpSize(mesh) % CpSize(mesh),
          .tp_rank = rank % TpSize(mesh)};
}

std::string MeshText(const v1::Mesh& mesh) {
  std::vector<std::string> axes;
  const auto add = [&](const char* axis, uint32_t size) {
    if (size > 1) axes.push_back(absl::StrCat(axis, "=", size));
  };
  add("dp", DpSize(mesh));
  add("pp", PpSize(mesh));
  add("cp", CpSize(mesh));
  add("tp", TpSize(mesh));
  add("ep", EpSize(mesh));
  return axes.empty() ? "dp=1" : absl::StrJoin(axes, ",");
}

}  // namespace stemma
