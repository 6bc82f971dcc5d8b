#include "common/base/mesh_links.h"

#include "common/base/mesh.h"

namespace stemma {

std::vector<MeshLink> LinksOf(const v1::Mesh& mesh) {
  std::vector<MeshLink> links;
  for (const MeshLink& link :
       {MeshLink{"data", DataRanks(mesh)}, MeshLink{"dp", DpSize(mesh)}, MeshLink{"cp", CpSize(mesh)},
        MeshLink{"tp", TpSize(mesh)}, MeshLink{"pp", PpSize(mesh)}}) {
    if (link.ranks > 1) links.push_back(link);
  }
  return links;
}

}  // namespace stemma
