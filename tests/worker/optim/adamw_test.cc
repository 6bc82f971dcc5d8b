// AdamW against the plain formula in fp64, and states in host memory against states on the device.
#include "worker/optim/adamw.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "worker/memory/cpu_allocator.h"

namespace stemma {
namespace {

v1::AdamParams Adam() {
  v1::AdamParams adam;
  adam.set_learning_rate(0.01);
  adam.set_beta1(0.9);
  adam.set_beta2(0.95);
  adam.set_eps(1e-8);
  adam.set_weight_decay(0.1);
  return adam;
}

// A matrix and a vector, whose sizes fill no vector register; bf16 weights have masters of their own.
std::vector<Parameter> MakeParameters(at::ScalarType run_dtype) {
  at::manual_seed(3);
  const at::ScalarType accumulate = run_dtype == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<Parameter> parameters;
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{37, 301}, {53}}) {
    Parameter p;
    p.name = "p" + std::to_string(parameters.size());
    p.master = at::randn(sizes, at::kDouble).to(accumulate);
    p.weight = run_dtype == accumulate ? p.master : p.master.to(run_dtype);
    p.grad = at::zeros(sizes, accumulate);
    parameters.push_back(std::move(p));
  }
  return parameters;
}

void SetGradients(std::vector<Parameter>& parameters, int64_t step) {
  for (Parameter& p : parameters) {
    at::manual_seed(100 * static_cast<uint64_t>(step) + p.name.back());
    p.grad.copy_(at::randn(p.grad.sizes(), at::kDouble));
  }
}

TEST(AdamwTest, AgreesWithThePlainFormula) {
  const v1::AdamParams adam = Adam();
  std::vector<Parameter> parameters = MakeParameters(at::kDouble);
  MakeMoments(parameters);
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

class HostStatesTest : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(HostStatesTest, GiveTheBitsOfStatesOnTheDevice) {
  std::vector<Parameter> device = MakeParameters(GetParam()), host = MakeParameters(GetParam());
  MakeMoments(device);
  ASSERT_TRUE(MoveStatesToHost(host).ok());
  for (int64_t step = 1; step <= 3; ++step) {
    SetGradients(device, step);
    SetGradients(host, step);
    AdamwStep(device, Adam(), 0.7, step);
    AdamwStep(host, Adam(), 0.7, step, /*slab_elements=*/1024);
    for (size_t i = 0; i < host.size(); ++i) {
      EXPECT_TRUE(at::equal(host[i].weight, device[i].weight)) << "step " << step;
      EXPECT_TRUE(at::equal(host[i].master, device[i].master)) << "step " << step;
      EXPECT_TRUE(at::equal(host[i].exp_avg_sq, device[i].exp_avg_sq)) << "step " << step;
    }
  }
}

TEST_P(HostStatesTest, TakeTheDeviceASlabAtATime) {
  InstallCpuAllocator();
  std::vector<Parameter> host = MakeParameters(GetParam());
  const int64_t with_masters = CpuMemoryStats().current_bytes;
  ASSERT_TRUE(MoveStatesToHost(host).ok());
  if (GetParam() == at::kBFloat16) {
    EXPECT_LT(CpuMemoryStats().current_bytes, with_masters);
  }
  SetGradients(host, 1);
  ResetPeakBytes();
  const int64_t before = CpuMemoryStats().current_bytes;
  AdamwStep(host, Adam(), 1, 1, /*slab_elements=*/1024);
  EXPECT_EQ(CpuMemoryStats().current_bytes, before) << "no moments on the device";
  const int64_t element = GetParam() == at::kDouble ? 8 : 4;
  EXPECT_LE(CpuMemoryStats().peak_bytes - before, 3 * 1024 * element + 1024);  // and the op's step
}

INSTANTIATE_TEST_SUITE_P(Dtypes, HostStatesTest, ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16),
                         [](const auto& test) { return std::string(c10::toString(test.param)); });

}  // namespace
}  // namespace stemma
