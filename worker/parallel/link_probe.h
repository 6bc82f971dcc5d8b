// Measures the link of each axis: what a message takes beside its bytes, and what each byte takes. A short probe, made
// once when the ranks have met, so that plans count the network that there is.
//
// Called by worker/engine on the engine thread, before the model is loaded. All ranks of the mesh call it together. The
// axes are probed one after the other, data, dp, cp, tp, pp, each in all of its groups at the same time: that is how
// steps use them. Calls are named kLinkProbeName, so no metric of a step counts them.
//
// An exchange is two messages: an all-gather and a reduce-scatter; between stages, and between copies of the model
// (dp), one to the next rank and one back. After each exchange the ranks of the group agree on how long the slowest one
// took, and how long the slowest has been probing. Sizes, repeats and results follow from what was agreed alone, so all
// of them do the same whatever their clocks say. Past kLinkProbeSeconds each size that is still tried has one measured
// exchange: larger ones are, while those before them take little longer than a message, for on a busy machine what
// holds such an exchange up is more than its bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "worker/parallel/mesh_ranks.h"

namespace stemma::worker {

inline constexpr char kLinkProbeName[] = "link_probe";
inline constexpr double kLinkProbeSeconds = 0.5;  // of one axis, see above

struct AxisLink {
  std::string axis;  // as LinksOf() in common/base/mesh_links.h names it
  int ranks = 0;
  double message_s = 0;
  double byte_s = 0;  // of a byte that a rank sends, as CollectiveBytes() counts it
};

// What exchanges of one size took, each its two messages.
struct ExchangeTime {
  int64_t bytes = 0;  // that a rank sends in both
  double fastest_s = 0, median_s = 0;
};

// Returns what two sizes of exchanges say of a link. A byte takes the seconds between the fastest of each over the
// bytes between them: what holds an exchange up has nothing to do with its bytes. A message takes half of the median of
// the small exchanges, without their bytes: what holds those up holds up the messages of a step, too. Both within the
// limits of common/base/mesh_links.h, also where noise made the larger exchange the faster one. Pure. REQUIRES:
// small.bytes < large.bytes.
AxisLink FitLink(const ExchangeTime& small, const ExchangeTime& large);

// Returns the middle one of them, of an even number the upper one of two. Pure. REQUIRES: there are some.
double MedianSeconds(std::vector<double> seconds);

// Returns the links of the axes of more than one rank. `device`: of the tensors that cross ranks; what is taken of it,
// 48 MiB at most, is given back. Errors: Unavailable - another rank has gone.
absl::StatusOr<std::vector<AxisLink>> ProbeLinks(const MeshRanks& ranks, at::Device device, const Clock& clock);

}  // namespace stemma::worker
