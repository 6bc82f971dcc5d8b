// Cuts the groups of one optimizer step into clusters and waves under the byte budget. Pure.
//
// A cluster grows, in the groups' order, while its prefixes take at most half the budget and one wave's worth of rows;
// a wave takes suffixes in order until the next one would pass the budget or the rows worth packing. A forced wave size
// (run.wave_suffixes) replaces the second rule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cost.h"
#include "stemma/v1/plan.pb.h"

namespace stemma {

struct PackingOptions {
  ByteShape shape;
  int64_t budget_bytes = 0;
  int64_t wave_suffixes = 0;  // forced; 0: by the budget
  v1::WaveLayout layout = v1::PACKED;
  bool forward_only = false;
};

struct PackingMember {
  uint32_t rollout = 0;  // index in its group
  int64_t rows = 0;      // R
};

struct PackingGroup {
  uint32_t group = 0;  // index in the payload
  std::string uid;
  int64_t prefix_rows = 0;  // P - 1
  bool reuse = false;
  std::vector<PackingMember> members;  // not empty
};

struct PackedCluster {
  v1::Cluster cluster;
  int64_t peak_bytes = 0;
};

// Errors: ResourceExhausted GROUP_TOO_LARGE - see MakePlan.
absl::StatusOr<std::vector<PackedCluster>> PackClusters(const PackingOptions& options,
                                                        const std::vector<PackingGroup>& groups);

}  // namespace stemma
