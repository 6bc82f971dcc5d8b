// Fused row-wise CPU kernels: each reads its operands once and writes its results once, in place of three to ten ATen
// calls. Called by worker/ops only. Raw pointers; rows are split over LibTorch's threads by at::parallel_for.
//
// One source (rowwise_rows.cc) is compiled once per instruction set, and the machine's is chosen at the first call
// (rowwise_table.h). Always holds: arithmetic in Acc<T> (fp32 for float and bf16, fp64 for double); results do not
// depend on the number of threads; sums over rows are made in a fixed order of fixed chunks.
//
// Letters: T rows, D width, F ffn, H query heads, K kv heads, E head size, P positions of the rope table.
#pragma once

#include <cstdint>
#include <type_traits>

namespace stemma::worker::kernels {

struct Bf16 {
  uint16_t bits;
};

template <typename T>
using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
struct RmsNormForwardArgs {
  const T* x_TD;
  const T* weight_D;
  T* y_TD;
  Acc<T>* rstd_T;
  int64_t rows, width;
  double eps;
};

template <typename T>
struct RmsNormBackwardArgs {
  const T* dy_TD;
  const T* x_TD;
  const Acc<T>* rstd_T;
  const T* weight_D;
  const T* residual_TD;  // added to dx; null: none
  T* dx_TD;
  Acc<T>* dweight_D;  // added to
  int64_t rows, width;
};

template <typename T>
struct SwigluForwardArgs {
  const T* gate_up_TJ;  // [T, 2F]
  T* y_TF;
  int64_t rows, width;  // width: F
};

template <typename T>
struct SwigluBackwardArgs {
  const T* dy_TF;
  const T* gate_up_TJ;
  T* dgate_up_TJ;
  int64_t rows, width;
};

template <typename T>
struct QkvForwardArgs {
  const T* qkv_TJ;  // [T, (H + 2K)·E]
  const int64_t* positions_T;
  const Acc<T>*cos_PE, *sin_PE;      // [P, E/2]
  const T *q_weight_E, *k_weight_E;  // QK-norm; null: none
  double eps;
  T *q_HTE, *k_TKE, *v_TKE;
  Acc<T>* rstd_TJ;  // [T, H + K]; with QK-norm only
  int64_t rows, num_heads, num_kv_heads, head_size;
};

// Element (h, t, e) lies at data[h · head_stride + t · row_stride + e].
template <typename T>
struct StridedHeads {
  T* data;
  int64_t head_stride, row_stride;
};

// T: run dtype; G: dtype of dk and dv.
template <typename T, typename G>
struct QkvBackwardArgs {
  StridedHeads<const T> dq_HTE;
  StridedHeads<const G> dk_TKE, dv_TKE;
  const int64_t* positions_T;
  const Acc<T>*cos_PE, *sin_PE;
  const T *q_weight_E, *k_weight_E;  // QK-norm; null: none, and then the next four are not read
  const T* qkv_TJ;
  const Acc<T>* rstd_TJ;
  Acc<T>*dq_weight_E, *dk_weight_E;  // added to
  T* dqkv_TJ;
  int64_t rows, num_heads, num_kv_heads, head_size;
};

// A part of split attention: output and log-sum-exp of head (k, i), i < g, row t lie at
// out[k · kv_stride + i · group_stride + t · row_stride + e] and lse[k · lse_kv_stride + i · lse_group_stride + t ·
// lse_row_stride].
template <typename A>
struct AttentionPart {
  const A* out;
  int64_t kv_stride, group_stride, row_stride;
  const A* lse;
  int64_t lse_kv_stride, lse_group_stride, lse_row_stride;
};

// w = sigmoid(lA - lB); o = oB + w (oA - oB); l = lB + softplus(lA - lB). Without an ancestor part: o = oB, l = lB.
template <typename T>
struct MergeArgs {
  AttentionPart<Acc<T>> ancestor;  // out null: none
  AttentionPart<Acc<T>> own;
  T* o_TD;  // [rows, H·E], rows adjacent
  Acc<T>* lse_HT;
  int64_t lse_head_stride;
  int64_t rows, num_kv_heads, group, head_size;
};

// Gradients of one part of split attention: head (k, i), row t lie at data[k · kv_stride + i · group_stride + t ·
// row_stride].
template <typename A>
struct HeadGradients {
  const A* data;
  int64_t kv_stride, group_stride, row_stride;
};

// out of head k · group + i is first + second (null: nothing). Rows of out are adjacent.
template <typename T>
struct CombineHeadsArgs {
  HeadGradients<Acc<T>> first, second;
  T* out;
  int64_t out_head_stride;
  int64_t rows, num_kv_heads, group, head_size;
};

template <typename T>
struct EmbeddingBackwardArgs {
  const int64_t* tokens_T;
  const T* dx_TD;
  Acc<T>* dweight_VD;  // added to, in row order
  int64_t rows, width;
};

template <typename T>
void RmsNormForward(const RmsNormForwardArgs<T>& args);
template <typename T>
void RmsNormBackward(const RmsNormBackwardArgs<T>& args);
template <typename T>
void SwigluForward(const SwigluForwardArgs<T>& args);
template <typename T>
void SwigluBackward(const SwigluBackwardArgs<T>& args);
template <typename T>
void QkvForward(const QkvForwardArgs<T>& args);
template <typename T, typename G>
void QkvBackward(const QkvBackwardArgs<T, G>& args);
template <typename T>
void Merge(const MergeArgs<T>& args);
template <typename T>
void CombineHeads(const CombineHeadsArgs<T>& args);
template <typename T>
void EmbeddingBackward(const EmbeddingBackwardArgs<T>& args);

}  // namespace stemma::worker::kernels
