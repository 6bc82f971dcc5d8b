// Parameters, gradients and AdamW's numbers for its tests.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "worker/optim/adamw.h"

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

// bf16 weights have masters of their own.
inline std::vector<Parameter> MakeParameters(at::ScalarType run_dtype, const std::vector<std::vector<int64_t>>& sizes) {
  at::manual_seed(3);
  const at::ScalarType accumulate = run_dtype == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<Parameter> parameters;
  for (const std::vector<int64_t>& of_one : sizes) {
    Parameter p;
    p.name = "p" + std::to_string(parameters.size());
    p.master = at::randn(of_one, at::kDouble).to(accumulate);
    p.weight = run_dtype == accumulate ? p.master : p.master.to(run_dtype);
    p.grad = at::zeros(of_one, accumulate);
    parameters.push_back(std::move(p));
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
