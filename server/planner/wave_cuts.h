// Cuts a cluster's suffixes into as few waves as the bytes that are left to a wave allow, in order. Pure. Those that
// are cut by rows come first, each in a wave of its own.
//
// A wave ends where the next member would pass the bytes or the rows worth packing. Greedy is optimal, since every part
// of a wave that fits, fits; so the longest beginning that fits is searched by halves. Not thread-safe: a cut is kept
// with the range of bytes in which it is the answer, and most ways of computing a cluster find theirs among those.
#pragma once

#include <cstdint>
#include <limits>
#include <list>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/cost/cost.h"
#include "server/planner/cost_model.h"
#include "server/planner/memory_options.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::server {

// What is there beside a wave, on each of MemoryOptions::telling_stages: beside each of its layers, and, where there
// are several stages, what the prefixes keep, which is counted with the wave then.
struct BesideWave {
  struct OfStage {
    BesideLayer layer;
    PhaseBytes kept;
    bool operator==(const OfStage&) const = default;
  };
  absl::InlinedVector<OfStage, 1> stages = {};  // empty: nothing is there

  bool operator==(const BesideWave&) const = default;
};

// Returns the shape of a wave of these members.
WaveShape WaveOf(std::span<const MemberShape> members, v1::WaveLayout layout, v1::TapePolicy policy);

struct WaveCut {
  std::vector<uint32_t> sizes;  // members of each wave, in order
  WavePasses passes;            // of these waves
  PhaseBytes largest;           // of its largest wave, without what the prefixes of one stage keep beside it
  // It is the cut for every number of bytes from the first to the last.
  int64_t bytes_min = std::numeric_limits<int64_t>::min(), bytes_max = kNoLimit;

  int64_t waves() const { return static_cast<int64_t>(sizes.size()); }
};

class WaveCuts {
 public:
  // Options and cluster outlive it.
  WaveCuts(const MemoryOptions& options, const ClusterShape& cluster, const BesideWave& beside = {});

  // The waves where bytes are no limit: no cut has fewer.
  const WavePasses& fewest() const { return fewest_; }
  // No cut has less of anything, though its waves' rows may need less rounding than those of the fewest.
  const WavePasses& least() const { return least_; }

  // The cut when `bytes` are left to a wave. Its largest wave passes them where one member alone does, or where the
  // size of waves is forced.
  const WaveCut& Cut(v1::TapePolicy policy, int64_t bytes);

  // Tells whether the sizes of waves follow from bytes; else they are forced.
  static bool BytesDecide(const MemoryOptions& options) {
    return options.layout != v1::ONE_BY_ONE && options.wave_suffixes == 0;
  }

  // The fewest bytes that any cut needs.
  int64_t LeastBytes(v1::TapePolicy policy);

  int64_t waves_priced() const { return waves_priced_; }  // how often the bytes of a wave were asked for

 private:
  PhaseBytes OnStage(size_t telling, const WaveShape& wave) const;
  WaveShape ShapeOf(size_t begin, size_t count, v1::TapePolicy policy) const;
  PhaseBytes BytesOf(const WaveShape& wave);
  size_t CountWorthPacking(size_t begin) const;
  void Add(size_t begin, size_t count, WavePasses& passes) const;
  WaveCut MakeCut(v1::TapePolicy policy, int64_t bytes);
  // Shortens a wave that passes `bytes`, of more than one member; returns the bytes of what is left of it, unless that
  // is one member, whose bytes are not asked for.
  PhaseBytes Shorten(size_t begin, int64_t bytes, v1::TapePolicy policy, PhaseBytes whole, size_t& count, WaveCut& cut);

  struct OfPolicy {
    std::list<WaveCut> cuts;   // references to them stay valid
    int64_t least_bytes = -1;  // -1: not known yet
  };

  const MemoryOptions& options_;
  const ClusterShape& cluster_;
  const std::vector<size_t> telling_;
  BesideWave beside_;
  std::vector<size_t> largest_members_;  // one of them needs most alone, whatever the policy
  WavePasses fewest_, least_;
  int64_t waves_priced_ = 0;
  OfPolicy policies_[v1::TapePolicy_ARRAYSIZE];
};

}  // namespace stemma::server
