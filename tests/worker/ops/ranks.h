// Tensor-parallel ranks that are threads, for tests of ops.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/testing/namespaces.h"
#include "tests/testing/thread_communicator.h"
#include "worker/ops/tensor_parallel.h"

namespace stemma::testing {

// Runs `body` for each rank on a thread of its own, each with one compute thread.
inline void OnRanks(int ranks, const std::function<void(const TensorParallel& tp)>& body) {
  std::vector<std::thread> threads;
  for (auto& rank : MakeThreadRanks(ranks, absl::Minutes(1), "tp.0")) {
    threads.emplace_back([&body, rank = std::move(rank)] {
      at::set_num_threads(1);
      body(worker::RankTensorParallel(*rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A rank's rows of all of them, padded with zeros: the plain formula.
inline at::Tensor PaddedPart(const at::Tensor& all_TD, const TensorParallel& tp) {
  const int64_t part = (all_TD.size(0) + tp.size() - 1) / tp.size();
  const at::Tensor padded = at::constant_pad_nd(all_TD, {0, 0, 0, tp.size() * part - all_TD.size(0)}, 0);
  return padded.slice(0, tp.rank() * part, (tp.rank() + 1) * part).contiguous();
}

}  // namespace stemma::testing
