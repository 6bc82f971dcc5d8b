// The links of a mesh: which groups of ranks send to each other, by the axis's name, and the limits of what a probe may
// say of one. Used by the worker that measures, the server that checks and `stemma doctor`. Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "stemma/v1/run_config.pb.h"

namespace stemma {

inline constexpr int kLinksMax = 5;  // of a mesh: data, dp, cp, tp, pp

// No network is faster or slower than this. A worker rounds what it measured to these, and a server refuses the rest.
inline constexpr double kLinkMessageSecondsMin = 1e-7, kLinkMessageSecondsMax = 60;
inline constexpr double kLinkByteSecondsMin = 1e-13, kLinkByteSecondsMax = 1e-3;

// An axis of several ranks. "data": those that hold the same part of the model, dp · cp of them, in their collectives.
// "dp": of those, the ones that have the same place in their copies, one message at a time.
struct MeshLink {
  std::string_view axis;
  uint32_t ranks = 0;
};

// Returns the axes of more than one rank, in the order in which they are probed.
std::vector<MeshLink> LinksOf(const v1::Mesh& mesh);

}  // namespace stemma
