// AdamW against the plain formula in fp64.
#include "worker/optim/adamw.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/worker/optim/parameters.h"

namespace stemma::testing {
namespace {

TEST(AdamwTest, AgreesWithThePlainFormula) {
  const v1::AdamParams adam = Adam();
  std::vector<Parameter> parameters = MakeParameters(at::kDouble, {{37, 301}, {53}});
  std::vector<at::Tensor> w, m, v;
  for (const Parameter& p : parameters) {
    w.push_back(p.master.clone());
    m.push_back(at::zeros_like(p.master));
    v.push_back(at::zeros_like(p.master));
  }
  constexpr double kClip = 0.5;
  for (int64_t step = 1; step <= 3; ++step) {
    SetGradients(parameters, step);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor g = parameters[i].grad * kClip;
      m[i] = adam.beta1() * m[i] + (1 - adam.beta1()) * g;
      v[i] = adam.beta2() * v[i] + (1 - adam.beta2()) * g * g;
      const double decay = parameters[i].is_matrix() ? adam.weight_decay() : 0;
      const double t = static_cast<double>(step);
      const at::Tensor m_hat = m[i] / (1 - std::pow(adam.beta1(), t)), v_hat = v[i] / (1 - std::pow(adam.beta2(), t));
      w[i] = w[i] * (1 - adam.learning_rate() * decay) - adam.learning_rate() * m_hat / (v_hat.sqrt() + adam.eps());
    }
    AdamwStep(parameters, adam, kClip, step);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_LT((parameters[i].master - w[i]).abs().max().item<double>(), 1e-14);  // values of some units, three steps
  }
}

}  // namespace
}  // namespace stemma::testing
