#include "tests/testing/control_kernels.h"

#include <map>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros_like.h>

namespace stemma::testing {
namespace {

class PartialKernel : public CpuFlashAttention {
 public:
  PartialKernel(bool partial_output, bool partial_lse) : partial_output_(partial_output), partial_lse_(partial_lse) {}

  Output Forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                 double scale) const override {
    const Output output = CpuFlashAttention::Forward(q, k, v, causal, scale);
    partial_[Key(q, causal)] = {output.out.clone(), output.lse.clone()};
    return output;
  }

  Gradients Backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& out, const at::Tensor& lse, bool causal, double scale) const override {
    const Output& own = partial_.at(Key(q, causal));
    const bool both = partial_output_ && partial_lse_;
    const at::Tensor weighted = both ? dout * (own.lse - lse).exp().unsqueeze(-1) : dout;
    return CpuFlashAttention::Backward(weighted, q, k, v, partial_output_ ? own.out : out,
                                       partial_lse_ ? own.lse : lse, causal, scale);
  }

 private:
  using PartialKey = std::tuple<const void*, int64_t, bool>;
  static PartialKey Key(const at::Tensor& q, bool causal) { return {q.const_data_ptr(), q.numel(), causal}; }

  const bool partial_output_, partial_lse_;
  mutable std::map<PartialKey, Output> partial_;
};

class DroppedGkKernel : public CpuFlashAttention {
 public:
  Gradients Backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& out, const at::Tensor& lse, bool causal, double scale) const override {
    Gradients gradients = CpuFlashAttention::Backward(dout, q, k, v, out, lse, causal, scale);
    if (!causal) gradients.dk = at::zeros_like(gradients.dk);
    return gradients;
  }
};

class RestartedPositionKernel : public CpuFlashAttention {
 public:
  explicit RestartedPositionKernel(double rope_theta) : rope_theta_(rope_theta) {}

  Output Forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                 double scale) const override {
    return CpuFlashAttention::Forward(causal ? q : Rotate(q, -k.size(2)), k, v, causal, scale);
  }

  Gradients Backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& out, const at::Tensor& lse, bool causal, double scale) const override {
    if (causal) return CpuFlashAttention::Backward(dout, q, k, v, out, lse, causal, scale);
    Gradients gradients =
        CpuFlashAttention::Backward(dout, Rotate(q, -k.size(2)), k, v, out, lse, causal, scale);
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

}  // namespace

std::unique_ptr<AttentionKernel> MakeControlKernel(const std::string& name, double rope_theta) {
  if (name == "none") return std::make_unique<CpuFlashAttention>();
  if (name == "partial_both") return std::make_unique<PartialKernel>(true, true);
  if (name == "partial_output") return std::make_unique<PartialKernel>(true, false);
  if (name == "partial_lse") return std::make_unique<PartialKernel>(false, true);
  if (name == "dropped_gk") return std::make_unique<DroppedGkKernel>();
  if (name == "restarted_position") return std::make_unique<RestartedPositionKernel>(rope_theta);
  return nullptr;
}

}  // namespace stemma::testing
