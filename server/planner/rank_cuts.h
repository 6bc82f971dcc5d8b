// Cuts a cluster's members into waves, those of each context-parallel rank by themselves: no wave crosses ranks, but
// those of members that are cut by rows, which are the first of every rank. With one rank it is
// server/planner/wave_cuts.h. Pure; not thread-safe.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/cost/byte_shape.h"
#include "server/planner/wave_cuts.h"

namespace stemma::server {

// The waves of each rank.
using WavesOfRanks = absl::InlinedVector<WavePasses, 1>;

// Returns the rounds of waves: the most that any rank has.
int64_t Rounds(const WavesOfRanks& waves);
// Returns the waves of all ranks. One that all of them run is counted by each.
int64_t NumWaves(const WavesOfRanks& waves);

// The cut of each rank; references last as long as the cuts that they are of.
struct RankCut {
  absl::InlinedVector<const WaveCut*, 1> of_ranks;

  WavesOfRanks waves() const;
  int64_t num_waves() const { return NumWaves(waves()); }
  // The largest wave of all ranks; of equally large ones the first rank's.
  const PhaseBytes& largest() const;
};

class RankCuts {
 public:
  // `dealt`: the rank of each member; empty: there is one rank. All outlive it.
  RankCuts(const MemoryOptions& options, const ClusterShape& cluster, const std::vector<uint32_t>& dealt);

  // See WaveCuts.
  const WavesOfRanks& fewest() const { return fewest_; }
  const WavesOfRanks& least() const { return least_; }

  // See WaveCuts. `beside`: what is there beside each layer of a wave.
  RankCut Cut(v1::TapePolicy policy, int64_t bytes, const BesideWave& beside);
  int64_t LeastBytes(v1::TapePolicy policy, const BesideWave& beside);

  // Returns the indices of the members in the order of the waves, of which those that are cut by rows are first; empty:
  // their own.
  std::vector<uint32_t> MemberOrder() const;
  // Returns how many members are cut by rows: so many waves are the first of every rank.
  size_t num_cut() const { return num_cut_; }

  int64_t waves_priced() const;

 private:
  struct OfBeside {
    BesideWave beside;
    std::list<WaveCuts> ranks;    // made when a cut is asked for
    std::optional<WaveCuts> all;  // of all members, as if one rank had them
  };
  OfBeside& Of(const BesideWave& beside);
  std::list<WaveCuts>& RanksOf(const BesideWave& beside);

  const MemoryOptions& options_;
  const ClusterShape& cluster_;
  const std::vector<uint32_t>& dealt_;
  std::vector<ClusterShape> of_ranks_;  // members of each rank; none where there is one
  size_t num_cut_ = 0;
  std::list<OfBeside> cuts_;  // the first is that of nothing beside
  WavesOfRanks fewest_, least_;
};

}  // namespace stemma::server
