// The head's row loops, compiled once per instruction set into the namespace STEMMA_ISA. Plain loops that the compiler
// vectorises; no inline function of a header that another file could also have built (see rowwise_rows.cc).
#include "worker/backend/cpu/lm_head_table.h"
#include "worker/backend/cpu/vector_exp.h"

namespace stemma::worker::kernels::STEMMA_ISA {
namespace {

// Elements per partial sum: a block stays in the first-level cache between its maximum and its exponentials.
constexpr int64_t kBlock = 1024;

struct RowSums {
  double sum = 0;       // Σ e^x
  double weighted = 0;  // Σ x e^x
};

template <typename T>
inline T BlockMax(const T* __restrict z, int64_t count) {
  T max = -__builtin_inff();
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < count; ++i) max = z[i] > max ? z[i] : max;
  return max;
}

template <typename T, bool kEntropy>
inline RowSums BlockSums(const T* __restrict z, int64_t count, T max, T inverse_temperature) {
  T sum = 0, weighted = 0;
#pragma omp simd reduction(+ : sum, weighted)
  for (int64_t i = 0; i < count; ++i) {
    const T x = (z[i] - max) * inverse_temperature;
    const T e = VectorExp(x);
    sum += e;
    if (kEntropy) weighted += x * e;
  }
  return {static_cast<double>(sum), static_cast<double>(weighted)};
}

// Sums around `max` of sums around the smaller `old_max`.
inline RowSums Recentre(const RowSums& sums, double old_max, double max, double inverse_temperature) {
  if (sums.sum == 0) return sums;
  const double shift = (old_max - max) * inverse_temperature;
  const double factor = __builtin_exp(shift);
  return {factor * sums.sum, factor * (sums.weighted + shift * sums.sum)};
}

template <typename T, bool kEntropy>
void ForwardRow(const HeadForwardArgs<T>& a, int64_t t) {
  const T* z = a.logits_TV + t * a.vocab;
  T max = -__builtin_inff();
  RowSums sums;
  for (int64_t begin = 0; begin < a.vocab; begin += kBlock) {
    const int64_t count = a.vocab - begin < kBlock ? a.vocab - begin : kBlock;
    const T block_max = BlockMax(z + begin, count);
    if (block_max > max) {
      sums = Recentre(sums, max, block_max, a.inverse_temperature);
      max = block_max;
    }
    const RowSums block = BlockSums<T, kEntropy>(z + begin, count, max, static_cast<T>(a.inverse_temperature));
    sums.sum += block.sum;
    sums.weighted += block.weighted;
  }
  const double log_sum = __builtin_log(sums.sum);
  a.softmax_T[t] = {.max = max, .log_sum = log_sum};
  const int64_t target = a.targets_T[t];
  const double target_z = target < 0 ? 0 : static_cast<double>(z[target]);
  a.log_prob_T[t] = (target_z - max) * a.inverse_temperature - log_sum;
  if (kEntropy) a.entropy_T[t] = log_sum - sums.weighted / sums.sum;
}

template <typename T>
void ForwardRows(const HeadForwardArgs<T>& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    if (a.entropy_T == nullptr) {
      ForwardRow<T, false>(a, t);
    } else {
      ForwardRow<T, true>(a, t);
    }
  }
}

template <typename T, bool kEntropy>
void HeadBackwardRow(const HeadBackwardArgs<T>& a, int64_t t) {
  T* __restrict z = a.logits_TV + t * a.vocab;
  const T inverse_temperature = static_cast<T>(a.inverse_temperature);
  const T max = static_cast<T>(a.softmax_T[t].max), log_sum = static_cast<T>(a.softmax_T[t].log_sum);
  const T g = static_cast<T>(a.dlog_prob_T[t] * a.inverse_temperature);
  const T h = kEntropy ? static_cast<T>(a.dentropy_T[t] * a.inverse_temperature) : T(0);
  const T entropy = kEntropy ? static_cast<T>(a.entropy_T[t]) : T(0);
#pragma omp simd
  for (int64_t i = 0; i < a.vocab; ++i) {
    const T log_p = (z[i] - max) * inverse_temperature - log_sum;
    const T p = VectorExp(log_p);
    z[i] = kEntropy ? -p * (g + h * (log_p + entropy)) : -p * g;
  }
  if (a.targets_T[t] >= 0) z[a.targets_T[t]] += g;
}

template <typename T>
void BackwardRows(const HeadBackwardArgs<T>& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const bool entropy = a.dentropy_T != nullptr && a.dentropy_T[t] != 0;
    if (entropy) {
      HeadBackwardRow<T, true>(a, t);
    } else if (a.dlog_prob_T[t] != 0) {
      HeadBackwardRow<T, false>(a, t);
    } else {
      T* z = a.logits_TV + t * a.vocab;
      for (int64_t i = 0; i < a.vocab; ++i) z[i] = 0;
    }
  }
}

}  // namespace

const LmHeadTable kLmHeadTable = {{ForwardRows<float>, BackwardRows<float>},
                                  {ForwardRows<double>, BackwardRows<double>}};

}  // namespace stemma::worker::kernels::STEMMA_ISA
