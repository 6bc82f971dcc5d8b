// Sums of gradients that the first and the last stage of a pipeline have parts of. Ranks are threads.
#include "worker/engine/partial_gradients.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "common/cost/state_shards.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/thread_communicator.h"

namespace stemma::testing {
namespace {

using worker::HfTensor;
using worker::Parameter;
using worker::PartialGradients;

constexpr absl::Duration kRankWaitsAtMost = absl::Minutes(1);

// Parameters of these sizes, whose gradients hold `value`; both stages have a part of each.
worker::Weights SharedWeights(const std::vector<int64_t>& sizes, double value) {
  worker::Weights weights;
  for (size_t i = 0; i < sizes.size(); ++i) {
    Parameter parameter;
    parameter.grad = at::full({sizes[i]}, value, at::kFloat);
    weights.parameters.push_back(parameter);
    HfTensor tensor;
    tensor.parameter = static_cast<int>(i);
    tensor.row_end = sizes[i];
    tensor.partial_over_first_and_last_stage = true;
    weights.hf_tensors.push_back(tensor);
  }
  return weights;
}

// Models share one tensor between their stages today; what it is received into is as large as the largest of several,
// or as a part of one.
TEST(PartialGradientsTest, StagesAddUpTensorsOfAnySizeInAnyOrder) {
  v1::Mesh mesh;
  mesh.set_pp(2);
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{5, 3}, {3, 5}, {kStageGradientElements + 3}}) {
    std::vector<worker::MeshRanks> ranks = MakeThreadMesh(mesh, /*kv_replicas=*/1, kRankWaitsAtMost);
    std::vector<worker::Weights> weights = {SharedWeights(sizes, 1), SharedWeights(sizes, 2)};
    std::vector<std::thread> threads;
    for (size_t stage = 0; stage < 2; ++stage) {
      threads.emplace_back([&, stage] {
        PartialGradients partial(weights[stage], ranks[stage]);
        EXPECT_THAT(partial.Sum(/*first=*/0), IsOk());
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const worker::Weights& of_stage : weights) {
      for (const Parameter& parameter : of_stage.parameters) {
        EXPECT_TRUE(parameter.grad.equal(at::full_like(parameter.grad, 3))) << parameter.grad.numel();
      }
    }
  }
}

}  // namespace
}  // namespace stemma::testing
