// Parameters, gradients and AdamW's numbers for its tests.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/namespaces.h"
#include "worker/optim/adamw.h"
#include "worker/optim/shards.h"
#include "worker/optim/states.h"

namespace stemma::testing {

inline v1::AdamParams Adam() {
  v1::AdamParams adam;
  adam.set_learning_rate(0.01);
  adam.set_beta1(0.9);
  adam.set_beta2(0.95);
  adam.set_eps(1e-8);
  adam.set_weight_decay(0.1);
  return adam;
}

// Random, the same each time; bf16 weights have masters of their own. With the states that rank `rank` of `ranks` owns.
inline std::vector<Parameter> MakeParameters(at::ScalarType run_dtype, const std::vector<std::vector<int64_t>>& sizes,
                                             v1::OptimizerResidency residency = v1::DEVICE, int64_t rank = 0,
                                             int64_t ranks = 1, int64_t bucket_elements = kBucketElements) {
  at::manual_seed(3);
  const at::ScalarType accumulate = run_dtype == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<Parameter> parameters;
  std::vector<at::Tensor> values;
  for (const std::vector<int64_t>& of_one : sizes) {
    Parameter p;
    p.name = "p" + std::to_string(parameters.size());
    values.push_back(at::randn(of_one, at::kDouble).to(accumulate));
    p.weight = values.back().to(run_dtype, /*non_blocking=*/false, /*copy=*/true);
    p.grad = at::zeros(of_one, accumulate);
    if (run_dtype == accumulate) p.master = p.weight;
    parameters.push_back(std::move(p));
  }
  const OptimizerShards shards(ElementsOf(parameters), ranks, bucket_elements);
  EXPECT_TRUE(MakeStates(parameters, residency, shards.owned(rank)).ok());
  for (const ParameterRange& r : shards.owned(rank)) {
    const size_t i = static_cast<size_t>(r.parameter);
    parameters[i].MasterElements(r.begin, r.count).copy_(Parameter::Elements(values[i], r.begin, r.count));
  }
  return parameters;
}

inline void SetGradients(std::vector<Parameter>& parameters, int64_t step) {
  for (Parameter& p : parameters) {
    at::manual_seed(100 * static_cast<uint64_t>(step) + p.name.back());
    p.grad.copy_(at::randn(p.grad.sizes(), at::kDouble));
  }
}

}  // namespace stemma::testing
