// What one rank computes with, which its FLOPs, bytes and traffic are counted from, and the bytes of a phase that are
// counted. Pure.
#pragma once

#include <cstdint>

#include "common/model/model_config.h"

namespace stemma {

// Rows of logits that exist at a time where nothing says how many.
inline constexpr int64_t kHeadChunkRows = 512;

// What bytes depend on beside the model's shape, of the rank of a mesh that holds most: RankShape() in
// common/cost/rank_shape.h.
struct ByteShape {
  ModelConfig config;     // what the rank computes with: its heads, FFN columns and tokens of the vocabulary
  int64_t tp = 1;         // ranks that hold a copy of the model together, and have some of its rows each
  int64_t cp = 1;         // ranks that share the rows of a cluster's prefixes, and compute some of its waves each
  int64_t run_bytes = 4;  // of an element: weights and activations (bf16 2, fp32 4, fp64 8)
  int64_t accumulate_bytes = 4;  // of statistics, gradients, gK/gV (fp64 8, else 4)
  int64_t head_chunk_rows = kHeadChunkRows;
  int64_t threads = 1;  // each has scratch in the attention kernel
  // Rows that the device's products take at a time: fewer take as long. Of seconds, not of bytes. 1: rows cost what
  // they are, and what the head's chunks read again is in the rates.
  int64_t row_quantum = 1;
  // The loss takes its gradient of whole responses: of one longer than a chunk of the head, all chunks but the last run
  // forward twice (worker/ops/head.h). Of seconds, not of bytes.
  bool whole_rollouts = false;
  // The place of a pipeline stage, whose layers `config` then has: only the first one looks tokens up, and all but the
  // last run every layer in full, for the stage after them.
  bool first_stage = true, last_stage = true;

  // Layers of which a prefix's rows need more than K and V.
  int64_t full_layers() const { return last_stage ? config.num_layers - 1 : config.num_layers; }
};

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

}  // namespace stemma
