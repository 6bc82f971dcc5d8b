// Waves of spans and ancestors, drawn or written down, their tensors, and an attention op run on them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"
#include "worker/backend/attention.h"

namespace stemma::testing {

struct SpanCase {
  int64_t rows;
  int64_t ancestor;  // -1: none
};

struct WaveCase {
  int64_t num_heads = 4, num_kv_heads = 2, head_size = 8;
  std::vector<int64_t> ancestor_rows = {};
  std::vector<SpanCase> spans = {};
  at::ScalarType dtype = at::kDouble;
  bool neighbours = true;           // ancestors' K/V lie behind each other in one storage
  bool neighbour_gradients = true;  // and so do gK/gV
  bool queries_by_token = true;     // [T, H, E] in memory
  uint64_t seed = 7;

  int64_t rows() const;
};

WaveCase DrawWave(Draw& draw);
std::string Describe(const WaveCase& c);

struct WaveInputs {
  at::Tensor q_HTE, k_TKE, v_TKE, do_TD;
  AttentionBatch batch;  // gk and gv begin at random numbers
};

// The same numbers for the same case.
WaveInputs MakeWave(const WaveCase& c);
// The same wave on another device or in another dtype; neighbours stay neighbours.
WaveInputs MakeWave(const WaveCase& c, at::Device device, at::ScalarType dtype);

struct WaveResult {
  at::Tensor o_TD, lse_HT, dq_HTE, dk_TKE, dv_TKE;
  std::vector<at::Tensor> gk, gv;
};

// A forward and a backward; adds to the inputs' gk and gv.
WaveResult RunWave(const WaveInputs& inputs, const AttentionOp& attention);

// The largest error over all outputs and gradients; infinity where one is NaN.
double WorstError(const WaveResult& actual, const WaveResult& expected);

}  // namespace stemma::testing
