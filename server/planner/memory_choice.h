// How a cluster lives in its memory: tape policies of prefix and suffixes, offload, blocks, suffixes per wave. Pure.
//
// Every alternative that the run configuration allows is predicted; the cheapest in seconds of those that fit the
// budget is taken, of equal ones the one that keeps more. Keeping everything is the cheapest where it fits.
// Invariants:
//  (1) a choice's peak is at most the budget, its host bytes at most the host's.
//  (2) a larger budget never gives a choice of more seconds: the alternatives do not depend on the budget, and the
//      waves of each are as few as the budget allows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/cost/cost.h"
#include "server/planner/cost_model.h"
#include "server/planner/stop_check.h"
#include "stemma/v1/plan.pb.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::server {

struct MemoryOptions {
  ByteShape shape;
  int64_t budget_bytes = 0;   // above weights, gradients and optimizer state (server/planner/memory_division.h)
  int64_t host_bytes = 0;     // of host memory for tapes; 0: not known, not a limit
  int64_t wave_suffixes = 0;  // forced; 0: by the budget
  v1::WaveLayout layout = v1::PACKED;
  bool forward_only = false;  // no tape, no policies
  Rates rates;
  // Forced; unspecified or 0: chosen.
  v1::TapePolicy prefix_policy = v1::TAPE_POLICY_UNSPECIFIED;
  v1::TapePolicy suffix_policy = v1::TAPE_POLICY_UNSPECIFIED;
  int64_t prefix_block_rows = 0;
  v1::Offload offload = v1::OFFLOAD_UNSPECIFIED;

  StopCheck stop;  // asked between alternatives
  bool stopped() const { return stop && stop(); }
};

// One way; prefix.rows is 0 where no group is computed with reuse.
struct MemoryAlternative {
  PrefixShape prefix;
  v1::TapePolicy suffix_policy = v1::S0;
};

struct MemoryChoice {
  MemoryAlternative way;
  std::vector<uint32_t> wave_sizes;                    // members of each wave, in order
  PhaseBytes prefix_forward, suffix, prefix_backward;  // at least: every copy of an offloaded tape is waited for
  int64_t host_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t headroom_bytes = 0;  // that copies of an offloaded tape may take beside: what the budget leaves
  PhaseWork work;
  PredictedSeconds seconds;
  bool cheapest = false;  // no alternative and no budget would be faster
  std::string reason;     // one line
};

// Without a choice: nothing fits, and these are the fewest bytes that any alternative needs; or planning was stopped,
// and the numbers mean nothing.
struct MemoryAnswer {
  std::optional<MemoryChoice> choice;
  int64_t bytes_needed = 0;
  int64_t host_bytes_needed = 0;  // above the host's; 0: the device is what is too small
};

// All that the configuration allows, those that keep more first. A forward-only pass has one.
std::vector<MemoryAlternative> Alternatives(const MemoryOptions& options, const ClusterShape& cluster);

// This alternative with as few waves as the budget allows; nullopt: it does not fit. No reason is set.
std::optional<MemoryChoice> Evaluate(const MemoryOptions& options, const ClusterShape& cluster,
                                     const MemoryAlternative& way);

MemoryAnswer ChooseMemory(const MemoryOptions& options, const ClusterShape& cluster);

// Each phase at its highest if copies use all the headroom; without offload as without headroom.
struct HeadroomPeaks {
  int64_t prefix_forward = 0, suffix = 0, prefix_backward = 0;
  int64_t peak() const;
};
HeadroomPeaks PeaksWithHeadroom(const MemoryOptions& options, const MemoryChoice& choice);

// The fewest bytes of the device that any alternative needs, with as much of the host as there is.
int64_t FewestBytes(const MemoryOptions& options, const ClusterShape& cluster);

// "1.20 GiB", "12.0 KiB".
std::string BytesText(int64_t bytes);

// "prefix S1 offloaded in blocks of 512 rows, suffixes S0".
std::string WayText(const MemoryAlternative& way);

}  // namespace stemma::server
