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
#include <optional>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/cost/wave_bytes.h"
#include "server/planner/cost_model.h"
#include "server/planner/memory_options.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::server {

// What is there beside a wave, on each of MemoryOptions::candidate_stages: beside each of its layers, and, where there
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

  // The cut when `bytes` are left to a wave. Where the size of waves is forced, the largest may pass them. Else, where
  // one member alone does, no cut fits: that member is the largest wave, and there are no others.
  const WaveCut& Cut(v1::TapePolicy policy, int64_t bytes);

  // Tells whether the sizes of waves follow from bytes; else they are forced.
  static bool BytesDecide(const MemoryOptions& options) {
    return options.layout != v1::ONE_BY_ONE && options.wave_suffixes == 0;
  }

  // The fewest bytes that any cut needs.
  int64_t LeastBytes(v1::TapePolicy policy);

  int64_t waves_priced() const { return waves_priced_; }  // how often the bytes of a wave were asked for

 private:
  PhaseBytes OnStage(size_t candidate, const WaveShape& wave) const;
  WaveShape ShapeOf(size_t begin, size_t count, v1::TapePolicy policy) const;
  PhaseBytes BytesOf(const WaveShape& wave);
  size_t CountWorthPacking(size_t begin) const;
  void Add(size_t begin, size_t count, WavePasses& passes) const;
  const PhaseBytes& BytesAlone(size_t member, v1::TapePolicy policy);
  const PhaseBytes& LargestAlone(v1::TapePolicy policy);

  class CutMaker;  // makes one cut, wave by wave

  struct Alone {
    size_t member;
    PhaseBytes bytes;
  };
  struct OfPolicy {
    std::list<WaveCut> cuts;                  // references to them stay valid
    std::list<Alone> alone;                   // likewise; of members that were asked for in a wave of their own
    std::optional<PhaseBytes> largest_alone;  // of all members; nullopt: not known yet
  };

  const MemoryOptions& options_;
  const ClusterShape& cluster_;
  const std::vector<size_t> candidates_;
  BesideWave beside_;
  std::vector<size_t> largest_members_;  // one of them needs most alone, whatever the policy
  WavePasses fewest_, least_;
  int64_t waves_priced_ = 0;
  OfPolicy policies_[v1::TapePolicy_ARRAYSIZE];
};

}  // namespace stemma::server
