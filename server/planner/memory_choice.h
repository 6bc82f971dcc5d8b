// How a cluster lives in its memory: tape policies of prefix and suffixes, offload, blocks, suffixes per wave; and
// where context-parallel ranks share it, how they keep the prefixes' K/V. Pure.
//
// Every way that the run configuration allows is looked at, though few are evaluated (server/planner/cluster_ways.h);
// the fastest of those that fit the budget is taken, of equal ones the one that keeps more. Keeping everything is the
// cheapest where it fits.
// Invariants:
//  (1) a choice's peak is at most the budget, its host bytes at most the host's.
//  (2) a larger budget never gives a choice of more seconds: the ways do not depend on the budget, and each has as few
//      waves as the budget allows. With pipeline stages that is so for one number of rounds in flight; where products
//      run in tiles, but for the rows by which fewer waves may be rounded up more; where rollouts are cut by rows to
//      fit, but for what that evens out between ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/cost/prefix_bytes.h"
#include "server/planner/cost_model.h"
#include "server/planner/memory_options.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::server {

// How a cluster's prefixes are computed.
struct PrefixWay {
  v1::TapePolicy policy = v1::S0;
  bool offload = false;
  int64_t block_rows = 0;  // 0: at once
  bool regather = false;   // see PrefixShape
};

// One way; prefix.rows is 0 where no group is computed with reuse.
struct MemoryAlternative {
  PrefixShape prefix;
  v1::TapePolicy suffix_policy = v1::S0;
};

// What a way needs in as few waves as possible, where no budget limits it.
struct WayNeeds {
  PrefixWay prefix;
  v1::TapePolicy suffix_policy = v1::S0;
  int64_t waves = 0;
  int64_t peak_bytes = 0;
  int64_t host_bytes = 0;
};

struct MemoryChoice {
  MemoryAlternative way;
  std::vector<uint32_t> wave_sizes;                    // members of each wave, in order; one rank's before the next's
  std::vector<uint32_t> wave_ranks;                    // of each wave, the context-parallel rank; empty: there is one
  size_t cut_waves = 0;                                // so many, the first, have one member each that is cut by rows
  std::vector<uint32_t> member_order;                  // indices of members in the waves' order; empty: their own
  PhaseBytes prefix_forward, suffix, prefix_backward;  // at least: every copy of an offloaded tape is waited for
  int64_t host_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t rounds_in_flight = 1;  // see MemoryOptions
  int64_t wave_rows = 0;         // likewise
  int64_t headroom_bytes = 0;    // that copies of an offloaded tape may take beside: what the budget leaves
  PhaseWork work;
  PredictedSeconds seconds;
  bool cheapest = false;           // no other way and no budget would be faster
  bool others = false;             // there are other ways
  std::optional<WayNeeds> wanted;  // unless cheapest: the way that would be, if it fitted
};

// Without a choice nothing fits, and these are the fewest bytes that any way needs.
struct MemoryAnswer {
  std::optional<MemoryChoice> choice;
  int64_t bytes_needed = 0;
  int64_t host_bytes_needed = 0;  // above the host's; 0: the device is what is too small
};

// Chooses for one cluster; for many see MemoryChooser. Where several rounds should be in flight and no way has room for
// so many, it is chosen for fewer. Context-parallel ranks may cut rollouts by rows (server/planner/cut_rollouts.h).
MemoryAnswer ChooseMemory(const MemoryOptions& options, const ClusterShape& cluster);

// Returns the options with the next smaller number of rounds in flight; nullopt: there is none.
std::optional<MemoryOptions> WithFewerRounds(const MemoryOptions& options);

// Why this way, in one line.
std::string MemoryReason(const MemoryOptions& options, const MemoryChoice& choice);

// Each phase at its highest if copies use all the headroom; without offload as without headroom.
struct HeadroomPeaks {
  int64_t prefix_forward = 0, suffix = 0, prefix_backward = 0;
  int64_t peak() const;
};
HeadroomPeaks PeaksWithHeadroom(const MemoryOptions& options, const MemoryChoice& choice);

// The fewest bytes of the device that any way needs, with as much of the host as there is.
int64_t FewestBytes(const MemoryOptions& options, const ClusterShape& cluster);

// "prefix S1 offloaded in blocks of 512 rows, suffixes S0"; `shared`: context-parallel ranks share the prefix, so that
// "K/V held" or "K/V gathered again" is said too.
std::string WayText(const MemoryAlternative& way, bool shared = false);

// "K/V held", "K/V gathered again".
std::string KvText(bool regather);

}  // namespace stemma::server
