// Which ranks of a mesh are connected with each other: one group for each axis of a rank. Pure; used by those that make
// a mesh's communicators, worker/parallel/connect_mesh.cc, and of tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mesh.h"
#include "worker/parallel/mesh_ranks.h"

namespace stemma::worker {

// A rank's place in one of its groups.
struct AxisGroup {
  std::unique_ptr<Communicator> MeshRanks::*communicator;  // which one connects it
  std::string name;                                        // of the group, "tp.3": no two groups share one
  uint32_t rank = 0, size = 1;
  // Hidden states of several rounds go on while gradients come back, and a stage does what is there first: messages
  // wait for those of their own pair and direction alone. Of other axes a rank's messages stand in one queue.
  bool pairs_apart = false;
};

// Returns the groups of the rank at `place`, in the order in which all ranks connect them. Neighbours in a group have
// ascending ranks in the mesh. `kv_replicas`: ModelShard::kv_replicas(), a divisor of the mesh's tp.
std::vector<AxisGroup> GroupsOf(const v1::Mesh& mesh, const MeshPlace& place, uint32_t kv_replicas);

}  // namespace stemma::worker
