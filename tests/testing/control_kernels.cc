#include "tests/testing/control_kernels.h"

#include <ATen/ATen.h>

#include "tests/testing/wrong_attention.h"

namespace stemma::testing {
namespace {

class DroppedGkKernel : public CpuAttention {
 public:
  at::Tensor Backward(const Call& call, const Output& output, const at::Tensor& dout,
                      const KeyGradients& sums) const override {
    const KeyGradients dropped = {at::zeros_like(sums.dk), sums.dv};
    return CpuAttention::Backward(call, output, dout, call.causal ? sums : dropped);
  }
};

class RestartedPositionKernel : public CpuAttention {
 public:
  explicit RestartedPositionKernel(double rope_theta) : rope_theta_(rope_theta) {}

  Output Forward(const Call& call) const override { return CpuAttention::Forward(Restarted(call)); }

  at::Tensor Backward(const Call& call, const Output& output, const at::Tensor& dout,
                      const KeyGradients& sums) const override {
    const at::Tensor dq = CpuAttention::Backward(Restarted(call), output, dout, sums);
    return call.causal ? dq : Rotate(dq, call.k.size(2));
  }

 private:
  Call Restarted(Call call) const {
    if (!call.causal) call.q = Rotate(call.q, -call.k.size(2));
    return call;
  }

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
  at::Tensor Backward(const Call& call, const Output& output, const at::Tensor& dout,
                      const KeyGradients& sums) const override {
    const at::Tensor dq = CpuAttention::Backward(call, output, dout, sums);
    if (call.causal) return dq;
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
