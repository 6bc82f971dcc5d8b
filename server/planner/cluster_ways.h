// All ways of computing one cluster that the run configuration allows, and the fastest of them that fits. Pure.
//
// A way is a prefix way (policy, offload, block rows; of context-parallel ranks also how they keep K/V) with a suffix
// policy: some 440 of them, and twice as many where ranks share the prefix. What they are made of is
// computed once, and only when asked for: seconds and bytes of the prefixes' phases once per prefix way, cuts into
// waves once per suffix policy and range of bytes, everything else in closed form (ClusterWorkSums).
//
// Not thread-safe; one object for one cluster, made where the cluster's memory is chosen.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "server/planner/cost_model.h"
#include "server/planner/memory_choice.h"
#include "server/planner/prefix_ways.h"
#include "server/planner/rank_cuts.h"

namespace stemma::server {

class ClusterWays {
 public:
  // Both outlive it.
  ClusterWays(const MemoryOptions& options, const ClusterShape& cluster);

  // See MemoryChoice; nullopt: nothing fits.
  std::optional<MemoryChoice> Fastest();
  // One way, which need not be among them, with as few waves as the budget allows; nullopt: it does not fit. Ends this
  // object's other uses.
  std::optional<MemoryChoice> Evaluate(const MemoryAlternative& way);
  // Those that keep more first. A forward-only pass has one for each size of its blocks.
  std::vector<MemoryAlternative> All();
  // The fewest bytes that any way needs. `of_device`: with as much of the host's memory as it takes.
  struct Fewest {
    int64_t of_device = kNoLimit;
    int64_t of_device_within_host = kNoLimit;  // among the ways whose tape the host can take
    int64_t of_host = kNoLimit;                // among the ways that fit the device
  };
  Fewest FewestBytes();

  int64_t ways_evaluated() const { return ways_evaluated_; }
  int64_t waves_priced() const { return cuts_.waves_priced(); }

 private:
  static constexpr size_t kSuffixPolicies = 5;

  // Bytes that stay during Phase B. On one rank they do not depend on how the prefixes are cut into blocks.
  struct Kept {
    PhaseBytes device;  // of several pipeline stages none: each stage's are beside the waves
    int64_t host = 0;
    BesideWave beside;
  };
  struct PhasePair {
    PhaseBytes forward, backward;  // Phases A and C
  };
  struct Prefix {
    PrefixWay way;
    size_t kept = 0;                       // its place in kept_
    std::optional<PhasePair> bytes = {};   // made when asked for
    double forward_s = 0, backward_s = 0;  // known once prices_ is
    double copy_out_s = 0, copy_in_s = 0;  // part of those: what compute hides is taken off in a sum of all phases
    double round_s = 0;                    // what gathering the prefixes again adds to a round of waves
  };
  // Way `index` is prefixes_[index / policies] with suffix_policies_[index % policies]: those that keep more first.
  struct Candidate {
    double seconds = 0;  // in the fewest waves, rounded up least: no budget makes it faster
    size_t index = 0;
    bool operator>(const Candidate& other) const {
      return seconds != other.seconds ? seconds > other.seconds : index > other.index;
    }
  };
  template <typename T>
  using OfPolicies = absl::InlinedVector<T, kSuffixPolicies>;
  using Candidates = absl::InlinedVector<Candidate, kPrefixWays * kSuffixPolicies>;
  struct Evaluated {
    size_t index = 0;
    RankCut cut;
    double seconds = 0;
  };

  Prefix& PrefixOf(size_t index) { return prefixes_[index / suffix_policies_.size()]; }
  v1::TapePolicy SuffixPolicyOf(size_t index) const { return suffix_policies_[index % suffix_policies_.size()]; }
  const PrefixShape& ShapeOf(const PrefixWay& way);
  PrefixShape AnsweredShape(const PrefixWay& way);
  PhaseBytes KeptOnStage(const ByteShape& stage, const PrefixShape& shape) const;
  Kept KeptBy(const PrefixWay& way);
  const PhasePair& BytesOf(Prefix& prefix);
  bool FitsWithoutWaves(Prefix& prefix);
  int64_t LeftToWaves(const Prefix& prefix) const;
  PhaseBytes PhaseB(const Prefix& prefix, const RankCut& cut) const;
  PhaseWork WorkOf(size_t index, const WavesOfRanks& waves);
  void DropOutdone();
  void PricePrefixes();
  Work SlowestSuffix(v1::TapePolicy policy, const WavesOfRanks& waves) const;
  double SuffixSeconds(v1::TapePolicy policy, const WavesOfRanks& waves) const;
  OfPolicies<double> SuffixSeconds(const WavesOfRanks& waves) const;
  OfPolicies<int64_t> LeastWaveBytes(const BesideWave& beside);
  double TotalSeconds(const Prefix& prefix, double suffix_s, const WavesOfRanks& waves) const;
  std::optional<RankCut> Fit(size_t index);
  Evaluated Priced(size_t index, RankCut cut);
  Candidates CandidatesThatMayFit(Candidate& fastest);
  MemoryChoice Choice(size_t index, const RankCut& cut);
  void SetWaves(const RankCut& cut, MemoryChoice& choice) const;
  WayNeeds Needs(size_t index);

  bool computes_prefixes() const { return shape_.rows > 0 && !borrowed_; }

  const MemoryOptions& options_;
  const std::vector<size_t> candidates_;
  const bool borrowed_;
  const std::vector<uint32_t> dealt_;  // the context-parallel rank of each member; empty: there is one
  const ClusterWorkSums sums_;
  RankCuts cuts_;
  PrefixShape shape_;  // of the prefix way that was asked for last
  std::vector<std::pair<int64_t, std::shared_ptr<const ContextShare>>> shares_;  // those asked for, by block rows
  absl::InlinedVector<Kept, 11> kept_;
  absl::InlinedVector<Prefix, kPrefixWays> prefixes_;
  absl::InlinedVector<v1::TapePolicy, kSuffixPolicies> suffix_policies_;
  bool has_others_ = false;  // of the ways that were made
  bool priced_ = false;
  int64_t ways_evaluated_ = 0;
};

}  // namespace stemma::server
