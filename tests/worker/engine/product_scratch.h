// The memory that LibTorch's library takes beside the operands and the result of a product of matrices, for tests that
// hold byte formulas to what the allocator counts.
#pragma once

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/model/model_config.h"
#include "tests/testing/namespaces.h"
#include "worker/memory/cpu_allocator.h"

namespace stemma::testing {

// Scratch that the library takes for a product of bf16 matrices of so many rows, by the instructions that it finds. It
// is asked here, on the machine where the test runs. 0 in fp32 and fp64, whose products take none.
inline int64_t ProductScratch(const ModelConfig& c, int64_t rows) {
  const int64_t kv = 2 * c.kv_size(), d = c.hidden_size;
  std::vector<std::pair<int64_t, int64_t>> weights = {
      {d, c.q_size() + kv}, {d, kv}, {c.q_size(), d}, {d, 2 * c.ffn_size}, {c.ffn_size, d}};
  if (c.experts) weights.emplace_back(d, c.experts->count);
  int64_t most = 0;
  for (const auto& [inputs, outputs] : weights) {
    const auto ones = [](int64_t n, int64_t m) { return at::ones({n, m}, at::TensorOptions().dtype(at::kBFloat16)); };
    const at::Tensor x = ones(rows, inputs), weight = ones(outputs, inputs), dy = ones(rows, outputs);
    const auto extra = [&](const at::Tensor& a, const at::Tensor& b) {
      ResetPeakBytes();
      const int64_t before = CpuMemoryStats().current_bytes;
      const at::Tensor product = at::mm(a, b);
      const MemoryStats stats = CpuMemoryStats();
      return stats.peak_bytes - before - (stats.current_bytes - before);
    };
    most = std::max({most, extra(x, weight.t()), extra(dy, weight)});
  }
  return most;
}

}  // namespace stemma::testing
