// The loops over a block of scores, compiled once per instruction set into the namespace STEMMA_ISA. Plain loops that
// the compiler vectorises; no inline function of a header that another file could also have built (see
// rowwise_rows.cc).
#include "worker/backend/cpu/attention_table.h"
#include "worker/backend/cpu/vector_exp.h"

namespace stemma::worker::kernels::STEMMA_ISA {
namespace {

template <typename T>
inline int64_t VisibleOf(const ScoreBlock<T>& block, int64_t r) {
  const int64_t visible = block.first_visible + r;
  return !block.diagonal || visible > block.columns ? block.columns : visible;
}

template <typename T>
inline T MaxOf(const T* __restrict s, int64_t count, T max) {
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < count; ++i) max = s[i] > max ? s[i] : max;
  return max;
}

// s becomes e^(scale (s - max)); returns its sum.
template <typename T>
inline T Exponentials(T* __restrict s, int64_t count, T scale, T max) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    const T e = VectorExp(scale * (s[i] - max));
    s[i] = e;
    sum += e;
  }
  return sum;
}

template <typename T>
inline void Multiply(T* __restrict x, int64_t count, T factor) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

template <typename T>
inline void Clear(T* __restrict x, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) x[i] = 0;
}

template <typename T>
void SoftmaxBlock(const ScoreBlock<T>& block, bool first, RowSoftmax<T>* softmax, T* out, int64_t out_row,
                  int64_t head_size) {
  for (int64_t r = 0; r < block.rows; ++r) {
    T* s = block.scores + r * block.columns;
    const int64_t visible = VisibleOf(block, r);
    const T old_max = softmax[r].max;
    const T max = MaxOf(s, visible, first ? -static_cast<T>(__builtin_inff()) : old_max);
    const T sum = Exponentials(s, visible, block.scale, max);
    Clear(s, visible, block.columns);
    if (first) {
      softmax[r] = {max, sum};
      continue;
    }
    const T factor = VectorExp(block.scale * (old_max - max));
    softmax[r] = {max, factor * softmax[r].sum + sum};
    if (factor != T(1)) Multiply(out + r * out_row, head_size, factor);
  }
}

template <typename T>
void Normalize(const RowSoftmax<T>* softmax, T scale, int64_t rows, int64_t head_size, T* out, int64_t out_row, T* lse,
               int64_t lse_row) {
  for (int64_t r = 0; r < rows; ++r) {
    Multiply(out + r * out_row, head_size, T(1) / softmax[r].sum);
    lse[r * lse_row] = scale * softmax[r].max + static_cast<T>(__builtin_log(static_cast<double>(softmax[r].sum)));
  }
}

template <typename T>
inline void BackwardRow(T* __restrict s, T* __restrict dp, int64_t count, T scale, T lse, T delta) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const T p = VectorExp(scale * s[i] - lse);
    s[i] = p;
    dp[i] = scale * p * (dp[i] - delta);
  }
}

template <typename T>
void BackwardBlock(const ScoreBlock<T>& block, const T* lse, int64_t lse_row, const T* delta, T* dp) {
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t visible = VisibleOf(block, r), row = r * block.columns;
    BackwardRow(block.scores + row, dp + row, visible, block.scale, lse[r * lse_row], delta[r]);
    Clear(block.scores + row, visible, block.columns);
    Clear(dp + row, visible, block.columns);
  }
}

template <typename T>
void Delta(const T* dout, int64_t dout_row, const T* out, int64_t out_row, int64_t rows, int64_t head_size, T* delta) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* __restrict a = dout + r * dout_row;
    const T* __restrict b = out + r * out_row;
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t e = 0; e < head_size; ++e) sum += a[e] * b[e];
    delta[r] = sum;
  }
}

template <typename T>
constexpr AttentionLoopsOf<T> MakeLoops() {
  return {SoftmaxBlock<T>, Normalize<T>, BackwardBlock<T>, Delta<T>};
}

}  // namespace

const AttentionLoops kAttentionLoops = {MakeLoops<float>(), MakeLoops<double>()};

}  // namespace stemma::worker::kernels::STEMMA_ISA
