#include "tests/testing/control_kernels.h"

#include <ATen/ATen.h>

#include "tests/testing/wrong_attention.h"

namespace stemma::testing {
namespace {

class DroppedGkKernel : public CpuAttention {
 public:
  at::Tensor Backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& out, const at::Tensor& lse, bool causal, double scale,
                      const KeyGradients& sums) const override {
    const KeyGradients dropped = {at::zeros_like(sums.dk), sums.dv};
    return CpuAttention::Backward(dout, q, k, v, out, lse, causal, scale, causal ? sums : dropped);
  }
};

class RestartedPositionKernel : public CpuAttention {
 public:
  explicit RestartedPositionKernel(double rope_theta) : rope_theta_(rope_theta) {}

  Output Forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                 double scale) const override {
    return CpuAttention::Forward(causal ? q : Rotate(q, -k.size(2)), k, v, causal, scale);
  }

  at::Tensor Backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& out, const at::Tensor& lse, bool causal, double scale,
                      const KeyGradients& sums) const override {
    if (causal) return CpuAttention::Backward(dout, q, k, v, out, lse, causal, scale, sums);
    return Rotate(CpuAttention::Backward(dout, Rotate(q, -k.size(2)), k, v, out, lse, causal, scale, sums), k.size(2));
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

class Bf16GkKernel : public CpuAttention {
 public:
  at::Tensor Backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& out, const at::Tensor& lse, bool causal, double scale,
                      const KeyGradients& sums) const override {
    const at::Tensor dq = CpuAttention::Backward(dout, q, k, v, out, lse, causal, scale, sums);
    if (causal) return dq;
    for (const at::Tensor& sum : {sums.dk, sums.dv}) sum.copy_(sum.to(at::kBFloat16));
    return dq;
  }
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
