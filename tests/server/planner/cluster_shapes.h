// Models and clusters that the planner's tests choose memory for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/planner/memory_choice.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

inline constexpr int64_t kMiB = 1 << 20;

// The benchmarks' model (tests/bench/shapes.py).
inline ModelConfig BenchModel() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 4096;
  config.hidden_size = 512;
  config.num_layers = 8;
  config.num_heads = 8;
  config.num_kv_heads = 4;
  config.head_size = 64;
  config.ffn_size = 1408;
  return config;
}

// Rates of two cores, near what tests/server/planner/recorded_phases.json says.
inline Rates BenchRates() {
  Rates rates = DefaultRates(RunDtype::kFp32, 2, "cpu");
  rates[server::kLinear] = 5.3e-12;
  rates[server::kHead] = 4e-12;
  rates[server::kAttentionForward] = 5.3e-12;
  rates[server::kAttentionBackward] = 5.5e-12;
  rates[server::kScoreBlock] = 12e-6;
  rates[server::kElement] = 0.15e-9;
  rates[server::kMerge] = 1e-9;
  rates[server::kWave] = 0.7e-9;
  rates[server::kWaveBackward] = 0.8e-9;
  rates[server::kParameter] = 3e-9;
  rates[server::kCopy] = 0.12e-9;
  return rates;
}

inline MemoryOptions BenchMemory(int64_t budget_bytes) {
  MemoryOptions options;
  options.shape.config = BenchModel();
  options.budget_bytes = budget_bytes;
  options.rates = BenchRates();
  return options;
}

// One group of `count` responses of `rows` behind a prefix.
inline ClusterShape OneGroup(int64_t prefix_rows, int64_t rows, int64_t count, bool reuse = true) {
  ClusterShape cluster;
  if (reuse && prefix_rows > 0) cluster.prefix_rows.push_back(prefix_rows);
  for (int64_t i = 0; i < count; ++i) {
    cluster.members.push_back({.rows = rows, .prefix_rows = prefix_rows, .dense = !reuse || prefix_rows == 0});
  }
  return cluster;
}

// A group reused beside a ragged one and a dense one.
inline ClusterShape MixedCluster() {
  ClusterShape cluster = OneGroup(700, 130, 3);
  cluster.prefix_rows.push_back(300);
  for (const int64_t rows : {1, 77, 400, 12}) cluster.members.push_back({.rows = rows, .prefix_rows = 300});
  for (const int64_t rows : {33, 250}) cluster.members.push_back({.rows = rows, .prefix_rows = 90, .dense = true});
  return cluster;
}

}  // namespace stemma::testing
