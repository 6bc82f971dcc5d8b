// The bytes that a wave of Phase B needs above weights, gradients and optimizer state, beside what the prefixes keep
// (common/cost/prefix_bytes.h). Torch-free arithmetic from shapes: the planner decides by it, the worker's tests hold
// it to measured bytes.
#pragma once

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "common/cost/byte_shape.h"
#include "common/cost/prefix_bytes.h"
#include "stemma/v1/plan.pb.h"

namespace stemma {

// A part of a wave: neighbours behind one prefix, or a trajectory that computes its prefix itself.
struct WaveRun {
  int64_t rows = 0;           // own prefix included
  int64_t longest_rows = 0;   // of one member
  int64_t ancestor_rows = 0;  // of the prefix that they attend to; 0: none
  int64_t kv_only_rows = 0;   // of the trajectory: its rows before the last prompt token
  // Members whose rows are padded to the longest for one call; 0 or 1: each has a call of its own.
  int64_t padded_members = 0;
  bool only_below = false;  // skipped in the last layer, where other runs have these rows
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

// Bytes beside each layer of a wave where the prefixes' K/V are gathered again and gK/gV are sent to their owners:
// RegatherBytes() in common/cost/regather_bytes.h.
struct BesideLayer {
  int64_t embedding = 0;                        // the first layer's are on their way
  int64_t forward = 0, backward = 0;            // of the layers below the last
  int64_t forward_last = 0, backward_last = 0;  // of the last one, after which, and before which, nothing travels
  int64_t backward_apart = 0;                   // when rows that are apart in the last one run backward, after it
  int64_t gradients = 0;  // of all rows, counted in both backwards: only a wave that attends to the prefixes makes them
  bool operator==(const BesideLayer&) const = default;
};

// Counts what a wave adds to what the prefixes keep.
PhaseBytes WaveBytes(const ByteShape& shape, const WaveShape& wave, const BesideLayer& beside = {});
// Counts both: Phase B of one wave.
PhaseBytes SuffixBytes(const ByteShape& shape, const PrefixShape& prefix, const WaveShape& wave);
// The wave's forward and its backward by themselves, for pipeline stages, which run others between them.
PhaseBytes WaveBytesInForward(const ByteShape& shape, const WaveShape& wave, const BesideLayer& beside = {});
PhaseBytes WaveBytesInBackward(const ByteShape& shape, const WaveShape& wave, const BesideLayer& beside = {});
// Counts what a wave keeps between its forward and its backward on a pipeline stage that runs other operations
// meanwhile.
int64_t WaveKeptBytes(const ByteShape& shape, const WaveShape& wave);
// Counts what a wave of a forward-only pass adds, which keeps no tape.
int64_t ForwardWaveBytes(const ByteShape& shape, const WaveShape& wave, const BesideLayer& beside = {});

}  // namespace stemma
