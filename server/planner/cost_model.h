// What a plan costs in time: work, counted exactly from shapes, times the machine's rates. Pure.
//
// Work is in units: FLOPs of the layers' matrix products, of attention (forward and backward apart: kernels differ) and
// of the head, blocks of attention scores, elements of elementwise work, elements merged, weights passed over, bytes
// copied. A rate is seconds for one unit. Seconds are linear in both, so that rates can be fitted to measured phases
// (server/planner/calibration.h).
//
// S(N) = 1 / (rho / N + eta + epsilon) (paper, Section 3.2) follows from the predicted seconds of a group computed with
// reuse and dense.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/base/dtype_names.h"
#include "common/cost/block_cost.h"
#include "common/cost/context_parallel_cost.h"
#include "common/cost/flops.h"
#include "common/cost/memory_choices.h"
#include "common/cost/prefix_bytes.h"
#include "server/planner/wave_passes.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::server {

enum Rate {
  kLinear,
  kAttentionForward,
  kAttentionBackward,
  kHead,
  kElement,
  kMerge,         // a suffix's attention output, joined with its prefix's part
  kWave,          // a weight that a wave or block reads, however few its rows are, as far as it is waited for
  kParameter,     // of the optimizer, with the copies of its states where they are in host memory
  kCopy,          // bytes between device and host
  kWaveBackward,  // a weight that the backward of one reads, adding to its gradient
  // A block of attention scores: what its small products cost beyond their FLOPs. A causal span of 64 rows runs at a
  // quarter of the rate of 2,048 rows (ops_bench); of a whole step it moves the prediction by less than a percent.
  kScoreBlock,
  // Bytes that a rank sends to the others of an axis, and each collective or message of it by itself.
  kTensorByte,
  kTensorCollective,
  kContextByte,
  kContextCollective,
  kStageByte,  // to a neighbour
  kStageMessage,
  kDataByte,  // to ranks that hold the same part of the model, once a step: in no phase's work
  kDataCollective,
  kPartByte,  // of a divided group, from one copy of the model to another: in no phase's work either
  kPartMessage,
};
inline constexpr int kNumRates = 21;
// As in the Rates message and the calibration's file.
extern const std::array<const char*, kNumRates> kRateNames;

// The rates of an axis's network.
struct LinkRates {
  Rate byte, message;
};
inline constexpr LinkRates kTensorLink = {kTensorByte, kTensorCollective},
                           kContextLink = {kContextByte, kContextCollective}, kStageLink = {kStageByte, kStageMessage},
                           kDataLink = {kDataByte, kDataCollective}, kPartLink = {kPartByte, kPartMessage};
inline constexpr std::array<LinkRates, 5> kLinkRates = {kTensorLink, kContextLink, kStageLink, kDataLink, kPartLink};

// By default bytes travel as fast as between device and host, and each message takes so many seconds beside.
inline constexpr double kMessageSeconds = 1e-4;

struct Work {
  std::array<double, kNumRates> units = {};
  double& operator[](Rate rate) { return units[static_cast<size_t>(rate)]; }
  double operator[](Rate rate) const { return units[static_cast<size_t>(rate)]; }
  Work& operator+=(const Work& other);
};

struct PhaseWork {
  Work prefix_forward, suffix, prefix_backward;
  PhaseWork& operator+=(const PhaseWork& other);
};

struct Rates {
  std::array<double, kNumRates> seconds = {};  // for one unit; as a list where rates are fitted
  double& operator[](Rate rate) { return seconds[static_cast<size_t>(rate)]; }
  double operator[](Rate rate) const { return seconds[static_cast<size_t>(rate)]; }
  std::string source;           // "a CPU core", "published figures of h200": whose the defaults are
  int64_t row_quantum = 1;      // see ByteShape
  bool copies_overlap = false;  // copies run beside compute, as far as it lasts
  int samples = 0;              // measured steps behind them
  bool calibrated = false;
};

// Returns sane rates before anything was measured: of a CPU core, or of a GPU as published. `device`: "cpu", or "cuda"
// with what its driver calls it, "cuda NVIDIA H200". A GPU that is not known has an H100's, as `source` says.
Rates DefaultRates(RunDtype dtype, int64_t threads, const std::string& device,
                   v1::OptimizerResidency residency = v1::DEVICE);

struct PredictedSeconds {
  double prefix_forward = 0, suffix = 0, prefix_backward = 0;
  double total() const { return prefix_forward + suffix + prefix_backward; }
  PredictedSeconds& operator+=(const PredictedSeconds& other);
};

double Seconds(const Work& work, const Rates& rates);
PredictedSeconds Seconds(const PhaseWork& work, const Rates& rates);
// The same of phases whose seconds are known one by one, with the seconds of their copies: what compute hides is taken
// off.
PredictedSeconds HideCopies(PredictedSeconds seconds, double copy_out, double copy_in, const Rates& rates);

// A cluster by its sizes.
struct ClusterShape {
  std::vector<int64_t> prefix_rows;  // of the groups computed with reuse
  std::vector<MemberShape> members;  // in the waves' order
  // Another copy of the model computes the prefixes: K/V come from there, and neither Phase A nor C runs here.
  bool borrowed = false;
  // Copies share the group: what travels between them is held by each of their ranks.
  bool split = false;

  bool operator==(const ClusterShape&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const ClusterShape& c) {
    return H::combine(std::move(h), c.prefix_rows, c.members, c.borrowed, c.split);
  }
};

int64_t PackedPrefixRows(const ClusterShape& cluster);

// A cluster's work in closed form: its members are added up once, and each way of computing them then takes a few
// products, however many they are. `prefix.rows` is that of PackedPrefixRows. Where context-parallel ranks share the
// prefixes' rows, Phases A and C are those of a rank that has the most of each kind of work. Of a pipeline stage it is
// that stage's work, with what it sends to its neighbours. The shape and the cluster outlive it.
class ClusterWorkSums {
 public:
  // One rank computes all members.
  ClusterWorkSums(const ByteShape& shape, const ClusterShape& cluster);
  // `dealt`: the rank of each member; empty: as above.
  ClusterWorkSums(const ByteShape& shape, const ClusterShape& cluster, const std::vector<uint32_t>& dealt);

  Work PrefixForward(const PrefixShape& prefix) const;
  Work PrefixBackward(const PrefixShape& prefix) const;
  size_t num_ranks() const { return ranks_.size(); }
  // Counts Phase B of one rank's members, with what its waves send. Gathering the prefixes again is Regather()'s.
  Work Suffix(v1::TapePolicy policy, const WavePasses& waves, size_t rank = 0) const;
  Work SuffixForwardOnly(const WavePasses& waves, size_t rank = 0) const;
  // The forward alone of what Suffix counts.
  Work SuffixForwardOfStep(const WavePasses& waves, size_t rank = 0) const;
  // Counts what gathering the prefixes again sends in so many rounds of waves, from every rank.
  Work Regather(const PrefixShape& prefix, int64_t rounds, bool forward_only) const;

 private:
  // A rank's members.
  struct Members {
    SegmentSums suffixes;      // behind their prefixes
    SegmentSums own_prefixes;  // of dense members
    double merged_rows = 0;    // of suffixes behind a shared prefix, or behind earlier rows of their own
    double score_blocks = 0;   // of all heads and layers, forward
    ContextSentBytes forward_sent, backward_sent;  // of those that are cut by rows
    FlopParts parts;
    double layer_rows = 0;          // of each layer that they run through in full
    int64_t head_chunks_again = 0;  // where this is the last stage
  };
  // The prefixes' rows in blocks, of the rank that has most; all of them where there is one.
  struct OwnRows {
    int64_t block_rows = 0;
    SegmentSums segments;
    SegmentSums products;  // the same, the rows of each block rounded up
    FlopParts parts;
    double merged_elements = 0;  // where rows' attention is of two parts, themselves and earlier rows
    double score_blocks = 0;
    double weights_passed = 0;  // in all blocks
  };

  void AddMember(const MemberShape& member, Members& members) const;
  void AddCutMember(const MemberShape& member);
  void CloseMembers(Members& members) const;
  const OwnRows& OwnRowsOf(const PrefixShape& prefix) const;
  OwnRows AllRows(const PrefixShape& prefix) const;
  OwnRows SharedRows(const PrefixShape& prefix) const;
  FlopParts Rounding(const WavePasses& waves) const;
  FlopParts RecomputedRounding(const WavePasses& waves, const BlockCost& layer, const BlockCost& key_value) const;
  void AddHeadAgain(const Members& members, Work& work) const;
  double ScoreBlocks(const WavePasses& waves, const Members& members) const;
  Work SuffixForward(const WavePasses& waves, bool entropy, const Members& members) const;

  const ByteShape& shape_;
  const ClusterShape& cluster_;
  const BlockCost layer_;
  const double prefix_weights_,
      wave_weights_;  // of the products that a block of a prefix, and a wave, runs through once
  absl::InlinedVector<Members, 1> ranks_;
  // Those asked for so far: most ways of computing a cluster differ in their policy alone.
  mutable absl::InlinedVector<OwnRows, 1 + kPrefixBlockRows.size()> own_rows_;
};

// The work of one cluster in so many waves of one rank, which computes all members.
PhaseWork ClusterWork(const ByteShape& shape, const ClusterShape& cluster, const PrefixShape& prefix,
                      v1::TapePolicy suffix_policy, const WavePasses& waves);
// Phases A and B without backward.
PhaseWork ForwardClusterWork(const ByteShape& shape, const ClusterShape& cluster, const WavePasses& waves);

// Clip and AdamW.
Work ApplyWork(const ModelConfig& config);

}  // namespace stemma::server
