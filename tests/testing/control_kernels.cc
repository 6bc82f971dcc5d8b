#include "tests/testing/control_kernels.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "tests/testing/wrong_attention.h"

namespace stemma::testing {
namespace {

class DroppedGkKernel : public CpuAttention {
 public:
  Gradients Backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& out, const at::Tensor& lse, bool causal, double scale) const override {
    Gradients gradients = CpuAttention::Backward(dout, q, k, v, out, lse, causal, scale);
    if (!causal) gradients.dk = at::zeros_like(gradients.dk);
    return gradients;
  }
};

class RestartedPositionKernel : public CpuAttention {
 public:
  explicit RestartedPositionKernel(double rope_theta) : rope_theta_(rope_theta) {}

  Output Forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                 double scale) const override {
    return CpuAttention::Forward(causal ? q : Rotate(q, -k.size(2)), k, v, causal, scale);
  }

  Gradients Backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& out, const at::Tensor& lse, bool causal, double scale) const override {
    if (causal) return CpuAttention::Backward(dout, q, k, v, out, lse, causal, scale);
    Gradients gradients = CpuAttention::Backward(dout, Rotate(q, -k.size(2)), k, v, out, lse, causal, scale);
    gradients.dq = Rotate(gradients.dq, k.size(2));
    return gradients;
  }

 private:
  at::Tensor Rotate(const at::Tensor& x, int64_t positions) const {
    const int64_t half = x.size(-1) / 2;
    const at::Tensor inv_freq =
        at::pow(rope_theta_, at::arange(half, at::kDouble) * (-1.0 / static_cast<double>(half)));
    const at::Tensor angle = inv_freq * static_cast<double>(positions);
    const at::Tensor cos = angle.cos().to(x.scalar_type()), sin = angle.sin().to(x.scalar_type());
    const at::Tensor a = x.slice(-1, 0, half), b = x.slice(-1, half);
    return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
  }

  const double rope_theta_;
};

// Ancestors are told apart by their keys' values: what the kernel gets may be a copy.
class Bf16GkKernel : public CpuAttention {
 public:
  Gradients Backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& out, const at::Tensor& lse, bool causal, double scale) const override {
    Gradients gradients = CpuAttention::Backward(dout, q, k, v, out, lse, causal, scale);
    if (causal) return gradients;
    Sums& sums = SumsOf(k);
    gradients.dk = Added(sums.dk, gradients.dk);
    gradients.dv = Added(sums.dv, gradients.dv);
    return gradients;
  }

 private:
  struct Sums {
    at::Tensor k, dk, dv;
  };

  Sums& SumsOf(const at::Tensor& k) const {
    for (Sums& sums : sums_) {
      if (sums.k.sizes() == k.sizes() && at::equal(sums.k, k)) return sums;
    }
    sums_.push_back({.k = k.clone(), .dk = at::zeros_like(k), .dv = at::zeros_like(k)});
    return sums_.back();
  }

  // What the engine must add to its exact sum to get the rounded one.
  static at::Tensor Added(at::Tensor& sum, const at::Tensor& gradient) {
    const at::Tensor rounded = (sum + gradient).to(at::kBFloat16).to(sum.scalar_type());
    return rounded - std::exchange(sum, rounded);
  }

  mutable std::vector<Sums> sums_;
};

}  // namespace

std::unique_ptr<AttentionKernel> MakeControlKernel(const std::string& name, double rope_theta) {
  if (name == "none") return std::make_unique<CpuAttention>();
  if (name == "partial_both") return std::make_unique<WrongAttention>(WrongBackward::kOwnOutputAndLse);
  if (name == "partial_output") return std::make_unique<WrongAttention>(WrongBackward::kOwnOutput);
  if (name == "partial_lse") return std::make_unique<WrongAttention>(WrongBackward::kOwnLse);
  if (name == "dropped_gk") return std::make_unique<DroppedGkKernel>();
  if (name == "bf16_gk") return std::make_unique<Bf16GkKernel>();
  if (name == "restarted_position") return std::make_unique<RestartedPositionKernel>(rope_theta);
  return nullptr;
}

}  // namespace stemma::testing
