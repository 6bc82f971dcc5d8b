// Phase B: waves of segments behind their prefix's K/V (the paper, Section 3.2). Backward adds to gK_l, gV_l.
//
// Called by worker/engine on the engine thread. In the last layer, a dense trajectory's rows before the last prompt
// token compute K and V only, as a prefix does. A pipeline's stage before the last runs all rows in all its layers. Of
// a suffix that is cut by rows a rank's segments are its pieces, and all context-parallel ranks make the same calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "worker/model/cut_rollout.h"
#include "worker/model/kv_block.h"
#include "worker/model/layer.h"
#include "worker/model/layer_final.h"
#include "worker/model/prefix_kv.h"

namespace stemma::worker {

struct WaveSegment {
  int64_t begin = 0, end = 0;  // rows
  int64_t prefix = -1;         // among the prefixes; -1: a whole trajectory (or P = 1)
  int64_t kv_only_rows = 0;    // leading rows before the last prompt token; 0 for a suffix
};

struct WaveInput {
  at::Tensor tokens_T, positions_T;   // int64
  std::vector<WaveSegment> segments;  // adjacent; those of one prefix are neighbours
  CausalLayout layout = CausalLayout::kLoop;
  v1::TapePolicy policy = v1::S0;
  std::shared_ptr<const CutRollout> cut = nullptr;  // of whose pieces the segments are; null: they are whole
};

struct WaveTape {
  std::vector<LayerTape> layers;
  KvTape last_kv;  // of kv_only rows; undefined tensors when there are none
  at::Tensor last_gk_TKE, last_gv_TKE;
  // This rank's rows of the last layer's output at the B head rows, and the final norm's statistic of them.
  at::Tensor y_BD, rstd_B;
  int64_t hidden_sent = 0;  // of StageLinks, when the wave's forward had ended
};

struct WaveForwardResult {
  at::Tensor hidden_BD;  // this rank's of the rows that predict a response token, normed, in segment order; on the
                         // model's last stage
  WaveTape tape;         // empty in a forward-only pass
};

// The prefixes behind a wave. `between_layers` is called while one layer has run and the next has not: copies that run
// beside the wave go on there.
struct WavePrefixes {
  PrefixKv& kv;
  std::function<void()> between_layers;
};

WaveForwardResult WaveForward(const LayerContext& context, const WavePrefixes& prefixes, const WaveInput& wave,
                              bool keep_tape);

// `dhidden_BD`: undefined on a stage before the last, which is sent its output's gradient. `layer_final`: given where
// it is a step's last backward.
void WaveBackward(const LayerContext& context, const WavePrefixes& prefixes, const WaveInput& wave, WaveTape tape,
                  at::Tensor dhidden_BD, const LayerFinal& layer_final = {});

// Make the calls of a wave that other ranks run, so that this one takes part in the exchanges behind `kv`, and in those
// of parameters. `kv`: null where those ranks have other prefixes. `head`: what they do with the head.
void JoinWaveForward(const LayerContext& context, PrefixKv* kv, UnitUse head);
void JoinWaveBackward(const LayerContext& context, PrefixKv* kv);

}  // namespace stemma::worker
