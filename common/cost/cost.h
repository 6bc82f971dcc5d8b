// Exact FLOPs of a plan, and the bytes it needs above weights, gradients and optimizer state. Torch-free arithmetic
// from shapes: the planner decides by it, the worker's tests hold it to measured bytes.
//
// FLOPs: 2 per multiply-add; linear layers 2·params forward and 4·params backward per row; attention 4·H·E forward and
// 8·H·E backward per (query, key) pair, causal pairs counted exactly; the head on suffix rows only. Both schedules are
// pruned alike: the last response token is not run, and in the last layer rows before the last prompt token compute K/V
// only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/model/model_config.h"
#include "stemma/v1/plan.pb.h"

namespace stemma {

struct Flops {
  double forward = 0;
  double backward = 0;
  double total() const { return forward + backward; }
  Flops& operator+=(const Flops& other);
};

// Phase A and C of a prefix of `rows` tokens (P - 1).
Flops PrefixFlops(const ModelConfig& config, int64_t rows);

// Phase B of one suffix of `rows` (R) behind `prefix_rows` ancestors, head included.
Flops SuffixFlops(const ModelConfig& config, int64_t prefix_rows, int64_t rows);

// One whole trajectory in the dense schedule: prefix_rows + rows, head on the last `rows`.
Flops DenseFlops(const ModelConfig& config, int64_t prefix_rows, int64_t rows);

// Segments of one kind, added up. FLOPs are linear in both sums, so that a group's are F_P + sum of F_S whatever the
// number of its rollouts. Whole numbers: sums below 2^53 are exact in any order.
struct SegmentSums {
  double rows = 0;
  double pairs = 0;  // (query, key), causal

  // One segment of `rows` behind so many ancestors.
  void Add(int64_t ancestor_rows, int64_t rows);
};

// What bytes depend on beside the model's shape, of the rank of a mesh that holds most: RankShape() in
// common/cost/rank_shape.h.
struct ByteShape {
  ModelConfig config;     // what the rank computes with: its heads, FFN columns and tokens of the vocabulary
  int64_t tp = 1;         // ranks that hold a copy of the model together, and have some of its rows each
  int64_t cp = 1;         // ranks that share the rows of a cluster's prefixes, and compute some of its waves each
  int64_t run_bytes = 4;  // of an element: weights and activations (bf16 2, fp32 4, fp64 8)
  int64_t accumulate_bytes = 4;  // of statistics, gradients, gK/gV (fp64 8, else 4)
  int64_t head_chunk_rows = 512;
  int64_t threads = 1;  // each has scratch in the attention kernel
  // Rows that the device's products take at a time: fewer take as long. Of seconds, not of bytes. 1: rows cost what
  // they are, and what the head's chunks read again is in the rates.
  int64_t row_quantum = 1;
  // The place of a pipeline stage, whose layers `config` then has: only the first one looks tokens up, and all but the
  // last run every layer in full, for the stage after them.
  bool first_stage = true, last_stage = true;

  // Layers of which a prefix's rows need more than K and V.
  int64_t full_layers() const { return last_stage ? config.num_layers - 1 : config.num_layers; }
};

// Forward FLOPs in the parts that run at rates of their own; backward takes twice as many of each.
struct FlopParts {
  double linear = 0, attention = 0, head = 0;
  double total() const { return linear + attention + head; }
};

FlopParts PrefixParts(const ModelConfig& config, const SegmentSums& prefixes);
FlopParts SuffixParts(const ModelConfig& config, const SegmentSums& suffixes);
// The same of what one rank computes with; stages add up to the whole.
FlopParts PrefixParts(const ByteShape& shape, const SegmentSums& prefixes);
FlopParts SuffixParts(const ByteShape& shape, const SegmentSums& suffixes);

// Forward FLOPs that a policy adds to the backward of so many segments: in all layers of suffixes, and of the layers of
// prefixes that are full ones. S5, of prefixes only, runs all of their forward again.
FlopParts PrefixRecomputeParts(const ModelConfig& config, const SegmentSums& prefixes, v1::TapePolicy policy);
FlopParts PrefixRecomputeParts(const ByteShape& shape, const SegmentSums& prefixes, v1::TapePolicy policy);
FlopParts SuffixRecomputeParts(const ModelConfig& config, const SegmentSums& suffixes, v1::TapePolicy policy);

class ContextShare;  // common/cost/context_share.h

// The prefixes of a cluster.
struct PrefixShape {
  int64_t rows = 0;                   // of all prefixes, packed
  std::vector<int64_t> lengths = {};  // of each, in order; empty: it is one
  int64_t block_rows = 0;             // computed so many at a time; 0: at once
  v1::TapePolicy policy = v1::S0;
  bool offload = false;  // the tape is in host memory, but for
  int64_t headroom_bytes = 0;
  // Where context-parallel ranks share the rows: each keeps K/V and gK/gV of its own ones, and all are gathered again,
  // layer by layer, wherever they are read. Else each rank holds those of all rows.
  bool regather = false;
  // How ranks share these lengths in these blocks, where a caller has counted it before; null: it is counted when asked
  // for.
  std::shared_ptr<const ContextShare> share = nullptr;
};

// A part of a wave: neighbours behind one prefix, or a trajectory that computes its prefix itself.
struct WaveRun {
  int64_t rows = 0;           // own prefix included
  int64_t longest_rows = 0;   // of one member
  int64_t ancestor_rows = 0;  // of the prefix that they attend to; 0: none
  int64_t kv_only_rows = 0;   // of the trajectory: its rows before the last prompt token
  // Members whose rows are padded to the longest for one call; 0 or 1: each has a call of its own.
  int64_t padded_members = 0;
  bool only_below = false;  // the last layer computes its rows in other runs
};

// One microbatch of Phase B.
struct WaveShape {
  int64_t rows = 0;          // all rows, prefixes of dense trajectories included
  int64_t kv_only_rows = 0;  // rows before the last prompt token of dense trajectories
  // Not all: one is left out where another is as large in every number, or larger. Empty: one trajectory of all rows.
  absl::InlinedVector<WaveRun, 4> runs = {};
  v1::TapePolicy policy = v1::S0;
  // All rows of a rollout that context-parallel ranks cut, of whose suffix `rows` are the largest part, and those of
  // the prefix that they attend to. 0: the wave's rollouts are whole.
  int64_t cut_rows = 0, cut_prefix_rows = 0;
};

// Adds a run to those of a wave, whose sums are the caller's.
void AddRun(const WaveRun& run, WaveShape& wave);

// Tells whether `a` is as large as `b` in every number, or larger: whatever the model, it then needs at least the
// bytes. Waves of rollouts that are cut are not compared.
bool Covers(const WaveShape& a, const WaveShape& b);

// Bytes beside each layer of a wave where the prefixes' K/V are gathered again and gK/gV are sent to their owners.
struct BesideLayer {
  int64_t embedding = 0;                        // the first layer's are on their way
  int64_t forward = 0, backward = 0;            // of the layers below the last
  int64_t forward_last = 0, backward_last = 0;  // of the last one, after which, and before which, nothing travels
  int64_t backward_apart = 0;                   // when rows that are apart in the last one run backward, after it
  int64_t gradients = 0;  // of all rows, counted in both backwards: only a wave that attends to the prefixes makes them
  bool operator==(const BesideLayer&) const = default;
};
// Returns 0 where each rank holds them all.
BesideLayer RegatherBytes(const ByteShape& shape, const PrefixShape& prefix);

// A phase at its highest moment, by what it is made of: device bytes above weights, gradients and optimizer state.
struct PhaseBytes {
  int64_t hot_set = 0;      // K/V, gK/gV of all layers
  int64_t dormant_set = 0;  // the prefixes' tape on the device
  int64_t wave_tape = 0;
  int64_t working_set = 0;  // of the layer or head chunk at work
  bool operator==(const PhaseBytes&) const = default;
  int64_t peak() const { return hot_set + dormant_set + wave_tape + working_set; }
  // Becomes the higher of the two.
  void RaiseTo(const PhaseBytes& moment) {
    if (moment.peak() > peak()) *this = moment;
  }
};

PhaseBytes PrefixForwardBytes(const ByteShape& shape, const PrefixShape& prefix);                  // Phase A
PhaseBytes SuffixBytes(const ByteShape& shape, const PrefixShape& prefix, const WaveShape& wave);  // Phase B, one wave
PhaseBytes PrefixBackwardBytes(const ByteShape& shape, const PrefixShape& prefix);                 // Phase C
// The two halves of Phase B's: what the prefixes keep on the device, whatever the wave, and what the wave adds.
PhaseBytes PrefixKeptBytes(const ByteShape& shape, const PrefixShape& prefix);
PhaseBytes WaveBytes(const ByteShape& shape, const WaveShape& wave, const BesideLayer& beside = {});
// The wave's forward and its backward by themselves, for pipeline stages, which run others between them.
PhaseBytes WaveBytesInForward(const ByteShape& shape, const WaveShape& wave, const BesideLayer& beside = {});
PhaseBytes WaveBytesInBackward(const ByteShape& shape, const WaveShape& wave, const BesideLayer& beside = {});
// Counts what a wave keeps between its forward and its backward on a pipeline stage that runs other operations
// meanwhile.
int64_t WaveKeptBytes(const ByteShape& shape, const WaveShape& wave);
// Counts the bytes of the prefixes' tape in host memory, where it is offloaded.
int64_t HostTapeBytes(const ByteShape& shape, const PrefixShape& prefix);
// FLOPs that the policy adds to a backward: forward products that are recomputed.
Flops PrefixRecomputeFlops(const ModelConfig& config, const PrefixShape& prefix);
Flops SuffixRecomputeFlops(const ModelConfig& config, int64_t prefix_rows, int64_t rows, v1::TapePolicy policy);

// Blocks of scores that one head's attention works through in one layer, on CPU: the rows of a span over themselves,
// and rows over `keys` earlier ones. What a block costs beside its products grows with its scores, so that a part of a
// block counts as that part; on the diagonal the scores that nobody sees count too. What is done around a span's call,
// buffers and copies, counts as a block.
double CausalScoreBlocks(int64_t rows);
double AncestorScoreBlocks(int64_t rows, int64_t keys);

// A forward-only pass keeps no tape and no gradients: what the layer at work made is dropped with it, whatever the
// policy. Phase A; the K/V that it leaves to Phase B; and what one wave adds to those.
PhaseBytes ForwardPrefixBytes(const ByteShape& shape, const PrefixShape& prefix);
int64_t ForwardKeptBytes(const ByteShape& shape, const PrefixShape& prefix);
int64_t ForwardWaveBytes(const ByteShape& shape, const WaveShape& wave, const BesideLayer& beside = {});

}  // namespace stemma
