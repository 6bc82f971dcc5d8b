// The three phases as loops over layers (the paper, Section 3.2).
//
//   Phase A  PrefixForward    all prefixes of a cluster in one packed pass: keeps K_l, V_l and the tape
//   Phase B  WaveForward,     segments behind their prefix's K/V; backward adds to gK_l, gV_l
//            WaveBackward
//   Phase C  PrefixBackward   from gK_l, gV_l of all layers alone
//
// Called by worker/engine on the engine thread. In the last layer, rows before the last prompt token compute K and V
// only, in every schedule: a prefix wholly, a dense trajectory in its first P - 1 rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/model/layer.h"

namespace stemma {

// The prefixes of a cluster: the hot set (K/V, gK/gV) and, until Phase C, the dormant tape.
struct PrefixBatch {
  at::Tensor tokens_T, positions_T;
  std::vector<AttentionSpan> spans;        // one per prefix, none empty
  std::vector<at::Tensor> k_KTE, v_KTE;    // per layer; the tape shares them
  std::vector<at::Tensor> gk_KTE, gv_KTE;  // per layer; empty in a forward-only pass
  std::vector<LayerTape> tape;             // layers 0 .. L-2; empty in a forward-only pass
  KvTape last;                             // layer L-1

  AncestorKv Ancestor(int64_t layer, int64_t prefix) const;
};

// tokens: the prefixes' tokens, one after the other; lengths: of each, > 0.
PrefixBatch PrefixForward(const LayerContext& context, const std::vector<int64_t>& tokens,
                          const std::vector<int64_t>& lengths, bool keep_tape);

// Consumes the batch; adds all parameters' gradients that come through the prefixes' K/V.
void PrefixBackward(const LayerContext& context, PrefixBatch prefixes);

struct WaveSegment {
  int64_t begin = 0, end = 0;  // rows
  int64_t prefix = -1;         // index into PrefixBatch::spans; -1: a whole trajectory (or P = 1)
  int64_t kv_only_rows = 0;    // leading rows before the last prompt token; 0 for a suffix
};

struct WaveInput {
  at::Tensor tokens_T, positions_T;   // int64
  std::vector<WaveSegment> segments;  // adjacent; those of one prefix are neighbours
  CausalLayout layout = CausalLayout::kLoop;
};

struct WaveTape {
  std::vector<LayerTape> layers;
  KvTape last_kv;  // of kv_only rows; undefined tensors when there are none
  at::Tensor last_gk_KTE, last_gv_KTE;
  at::Tensor y_BD, rstd_B;  // last layer's output at the B head rows, the final norm's statistic
};

struct WaveForwardResult {
  at::Tensor hidden_BD;  // normed, at the rows that predict a response token, in segment order
  WaveTape tape;         // empty in a forward-only pass
};

WaveForwardResult WaveForward(const LayerContext& context, const PrefixBatch& prefixes, const WaveInput& wave,
                              bool keep_tape);

void WaveBackward(const LayerContext& context, const PrefixBatch& prefixes, const WaveInput& wave, WaveTape tape,
                  at::Tensor dhidden_BD);

}  // namespace stemma
