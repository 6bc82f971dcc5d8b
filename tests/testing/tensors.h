// Random inputs, autograd of plain formulas (the oracle; tests only), and errors relative to the largest element.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <vector>

#include "tests/testing/namespaces.h"

namespace stemma::testing {

// Normal numbers from a seed.
class Random {
 public:
  explicit Random(uint64_t seed) : generator_(at::detail::createCPUGenerator(seed)) {}
  at::Tensor Normal(at::IntArrayRef sizes, at::ScalarType dtype = at::kDouble) {
    return at::randn(sizes, generator_, at::TensorOptions(at::kDouble)).to(dtype);
  }
  at::Tensor Integers(int64_t high, int64_t count) {
    return at::randint(high, {count}, generator_, at::TensorOptions(at::kLong));
  }

 private:
  at::Generator generator_;
};

// A leaf in fp64 with the values of x.
inline at::Tensor Leaf(const at::Tensor& x) { return x.detach().to(at::kDouble).clone().requires_grad_(true); }

// d (sum of y · dy) / d inputs by autograd.
inline std::vector<at::Tensor> AutogradOf(const std::vector<at::Tensor>& y, const std::vector<at::Tensor>& dy,
                                          const std::vector<at::Tensor>& inputs) {
  return torch::autograd::grad(y, inputs, dy, /*retain_graph=*/true, /*create_graph=*/false, /*allow_unused=*/false);
}

// max |actual - expected| / max |expected|; NaN anywhere gives NaN, which no bound accepts.
inline double RelativeError(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor a = actual.detach().to(at::kDouble), e = expected.detach().to(at::kDouble);
  TORCH_CHECK(a.sizes() == e.sizes(), "shapes ", a.sizes(), " and ", e.sizes());
  if (e.numel() == 0) return 0;
  const double scale = e.abs().max().item<double>();
  const double error = (a - e).abs().max().item<double>();
  return scale == 0 ? error : error / scale;
}

// fp64 against autograd: rounding of sums of some hundred terms, three orders below.
inline constexpr double kExact = 1e-12;

}  // namespace stemma::testing
