// What is asked of a library of attention calls in bf16, on any device: of a GPU's, and of the fake, so that the checks
// themselves are tried where no GPU is.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/namespaces.h"
#include "tests/worker/backend/cuda/attention/wave_cases.h"
#include "worker/backend/cuda/attention/flash_attention.h"
#include "worker/backend/cuda/attention/flash_calls.h"

namespace stemma::testing {

// Outputs and gradients are rounded to bf16 (2^-9 of a value) once to three times, errors are parts of the largest.
inline constexpr double kBf16 = 2e-2;
// The LSE is in fp32, of products whose operands are exact.
inline constexpr double kLse = 1e-4;

struct CallShape {
  int64_t batch, rows, keys, heads, kv_heads, head_size;
  bool causal;
};

// Grouped heads of each kind, one row, odd lengths, and an odd half of a tile of 128 rows.
std::vector<CallShape> CallShapes();

// A dense call in bf16, its numbers drawn.
worker::cuda::AttentionCall MakeCall(const CallShape& shape, at::Device device);
// The same in fp64 on the host, for the fake.
worker::cuda::AttentionCall OnHost(const worker::cuda::AttentionCall& call);

struct CallErrors {
  double values = 0;  // the worst of the output and the gradients
  double lse = 0;
  bool lse_by_head = false;  // [B, H, S], contiguous, fp32
};

// A dense call and its backward, given an output and an LSE that are not its own, against the fake in fp64.
CallErrors ErrorsOfCall(const worker::cuda::FlashCalls& calls, const CallShape& shape, at::Device device);
std::string Describe(const CallShape& shape);

std::vector<WaveCase> CheckedWaves();

// What a library of dense calls is given beside FA2, by split attention over both. Some setting makes, on some of
// CheckedWaves, each form of dense call that a run makes.
struct DenseSetting {
  const char* name;
  int64_t keys_multiple = 128, max_keys = 4096;
  int64_t scores_of_lone_span = worker::cuda::kScoresOfLoneSpan;
};
std::vector<DenseSetting> DenseSettings();
worker::cuda::FlashAttentionOptions OptionsOf(const DenseSetting& setting, const WaveCase& wave,
                                              const worker::cuda::FlashCalls& dense);

// The worst error of a wave in bf16, forward and merged backward, against whole scores in fp32.
double ErrorOfWave(const WaveCase& wave, const AttentionOp& attention, at::Device device);

}  // namespace stemma::testing
