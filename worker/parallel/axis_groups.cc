#include "worker/parallel/axis_groups.h"

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace stemma::worker {

std::vector<AxisGroup> GroupsOf(const v1::Mesh& mesh, const MeshPlace& place, uint32_t kv_replicas) {
  CHECK_EQ(TpSize(mesh) % kv_replicas, 0U);
  const auto [dp, pp, cp, tp] = place;
  return {
      {&MeshRanks::data, absl::StrCat("data.", pp, ".", tp), dp * CpSize(mesh) + cp, DataRanks(mesh)},
      {&MeshRanks::cp, absl::StrCat("cp.", dp, ".", pp, ".", tp), cp, CpSize(mesh)},
      {&MeshRanks::tp, absl::StrCat("tp.", dp, ".", pp, ".", cp), tp, TpSize(mesh)},
      {&MeshRanks::kv, absl::StrCat("kv.", dp, ".", pp, ".", cp, ".", tp / kv_replicas), tp % kv_replicas, kv_replicas},
      {&MeshRanks::pp, absl::StrCat("pp.", dp, ".", cp, ".", tp), pp, PpSize(mesh), /*pairs_apart=*/true},
  };
}

}  // namespace stemma::worker
