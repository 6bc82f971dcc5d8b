// Norm, SwiGLU, heads and embedding in ATen ops. Arithmetic in the accumulate dtype, as the fused kernels have it.
#include <ATen/ATen.h>

#include "worker/backend/composed/composed_kernels.h"

namespace stemma::worker::composed {
namespace {

// x̂ = x · rstd, and the gradient through it of dx̂ = dy · weight, over the last dim:
// dx = rstd · (dx̂ - x̂ · mean(dx̂ · x̂)).
at::Tensor NormGradient(const at::Tensor& dy, const at::Tensor& normed, const at::Tensor& rstd,
                        const at::Tensor& weight) {
  const at::Tensor dnormed = dy * weight;
  return rstd * (dnormed - normed * (dnormed * normed).mean(-1, /*keepdim=*/true));
}

// x [T, heads, E] of a fused product's columns, from column `first` on.
at::Tensor Heads(const at::Tensor& x_TJ, int64_t first, int64_t heads, int64_t head_size) {
  return x_TJ.narrow(1, first * head_size, heads * head_size).unflatten(1, {heads, head_size});
}

// Rotates [T, heads, E] by the angles of `cos`, `sin` [T, E/2]; the inverse with -sin.
at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = x.size(2) / 2;
  const at::Tensor a = x.narrow(2, 0, half), b = x.narrow(2, half, half);
  const at::Tensor c = cos.unsqueeze(1), s = sin.unsqueeze(1);
  return at::cat({a * c - b * s, b * c + a * s}, 2);
}

// The columns of one kind of heads, whose norm weight and places in rstd_TJ go together.
struct HeadKind {
  int64_t first, count;
  const at::Tensor& weight_E;
};

at::Tensor NormAndRotate(const QkvForwardOperands& args, const HeadKind& kind, const at::Tensor& cos,
                         const at::Tensor& sin) {
  const int64_t head_size = args.k_TKE.size(2);
  at::Tensor x = Acc(Heads(args.qkv_TJ, kind.first, kind.count, head_size));
  if (kind.weight_E.defined()) {
    const at::Tensor rstd = (x * x).mean(-1).add(args.eps).rsqrt();
    args.rstd_TJ.narrow(1, kind.first, kind.count).copy_(rstd);
    x = x * rstd.unsqueeze(2) * Acc(kind.weight_E);
  }
  return Rotate(x, cos, sin);
}

// The gradient of one kind of heads [T, heads, E], rotated back and through the norm, into its columns.
void HeadsBackward(const QkvBackwardOperands& args, const HeadKind& kind, const at::Tensor& dx_THE,
                   const at::Tensor& dweight_E, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t head_size = args.dk_TKE.size(2);
  at::Tensor dx = Rotate(Acc(dx_THE), cos, -sin);
  if (kind.weight_E.defined()) {
    const at::Tensor rstd = args.rstd_TJ.narrow(1, kind.first, kind.count).unsqueeze(2);
    const at::Tensor normed = Acc(Heads(args.qkv_TJ, kind.first, kind.count, head_size)) * rstd;
    dweight_E.add_((dx * normed).sum(at::IntArrayRef{0, 1}));
    dx = NormGradient(dx, normed, rstd, Acc(kind.weight_E));
  }
  Heads(args.dqkv_TJ, kind.first, kind.count, head_size).copy_(dx);
}

}  // namespace

void RmsNormForward(const RmsNormForwardOperands& args) {
  const at::Tensor x = Acc(args.x_TD);
  const at::Tensor rstd = (x * x).mean(-1).add(args.eps).rsqrt();
  args.rstd_T.copy_(rstd);
  args.y_TD.copy_(x * rstd.unsqueeze(1) * Acc(args.weight_D));
}

void RmsNormBackward(const RmsNormBackwardOperands& args) {
  const at::Tensor dy = Acc(args.dy_TD), rstd = args.rstd_T.unsqueeze(1);
  const at::Tensor normed = Acc(args.x_TD) * rstd;
  args.dweight_D.add_((dy * normed).sum(0));
  at::Tensor dx = NormGradient(dy, normed, rstd, Acc(args.weight_D));
  if (args.residual_TD.defined()) dx = dx + args.residual_TD;
  args.dx_TD.copy_(dx);
}

void SwigluForward(const SwigluForwardOperands& args) {
  const int64_t width = args.y_TF.size(1);
  const at::Tensor x = Acc(args.gate_up_TJ);
  args.y_TF.copy_(at::silu(x.narrow(1, 0, width)) * x.narrow(1, width, width));
}

void SwigluBackward(const SwigluBackwardOperands& args) {
  const int64_t width = args.dy_TF.size(1);
  const at::Tensor x = Acc(args.gate_up_TJ), dy = Acc(args.dy_TF);
  const at::Tensor gate = x.narrow(1, 0, width), up = x.narrow(1, width, width);
  const at::Tensor sigmoid = at::sigmoid(gate);
  args.dgate_up_TJ.narrow(1, 0, width).copy_(dy * up * sigmoid * (1 + gate * (1 - sigmoid)));
  args.dgate_up_TJ.narrow(1, width, width).copy_(dy * gate * sigmoid);
}

void QkvForward(const QkvForwardOperands& args) {
  const int64_t num_heads = args.q_HTE.defined() ? args.q_HTE.size(0) : 0, num_kv_heads = args.k_TKE.size(1);
  const at::Tensor cos = args.cos_PE.index_select(0, args.positions_T);
  const at::Tensor sin = args.sin_PE.index_select(0, args.positions_T);
  if (num_heads > 0) {
    args.q_HTE.copy_(NormAndRotate(args, {0, num_heads, args.q_weight_E}, cos, sin).permute({1, 0, 2}));
  }
  args.k_TKE.copy_(NormAndRotate(args, {num_heads, num_kv_heads, args.k_weight_E}, cos, sin));
  args.v_TKE.copy_(Heads(args.qkv_TJ, num_heads + num_kv_heads, num_kv_heads, args.v_TKE.size(2)));
}

void QkvBackward(const QkvBackwardOperands& args) {
  const int64_t num_heads = args.dq_HTE.defined() ? args.dq_HTE.size(0) : 0, num_kv_heads = args.dk_TKE.size(1);
  const at::Tensor cos = args.cos_PE.index_select(0, args.positions_T);
  const at::Tensor sin = args.sin_PE.index_select(0, args.positions_T);
  if (num_heads > 0) {
    HeadsBackward(args, {0, num_heads, args.q_weight_E}, args.dq_HTE.transpose(0, 1), args.dq_weight_E, cos, sin);
  }
  HeadsBackward(args, {num_heads, num_kv_heads, args.k_weight_E}, args.dk_TKE, args.dk_weight_E, cos, sin);
  Heads(args.dqkv_TJ, num_heads + num_kv_heads, num_kv_heads, args.dv_TKE.size(2)).copy_(args.dv_TKE);
}

void EmbeddingBackward(const EmbeddingBackwardOperands& args) {
  // Zeros may be added anywhere.
  const at::Tensor dx_TD = args.dx_TD.masked_fill((args.tokens_T < 0).unsqueeze(1), 0);
  args.dweight_VD.index_add_(0, args.tokens_T.clamp_min(0), dx_TD.to(args.dweight_VD.scalar_type()));
}

}  // namespace stemma::worker::composed
