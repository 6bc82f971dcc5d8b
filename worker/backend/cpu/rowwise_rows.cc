// The row loops, compiled once per instruction set into the namespace STEMMA_ISA. Plain loops that the compiler
// vectorises.
//
// No inline function of another header may be called here: the linker keeps one copy of such a function, and it could
// be the copy built for an instruction set that the machine lacks.
#include "worker/backend/cpu/rowwise_table.h"
#include "worker/backend/cpu/vector_exp.h"

namespace stemma::worker::kernels::STEMMA_ISA {

namespace {

inline float Load(float x) { return x; }
inline double Load(double x) { return x; }
inline float Load(Bf16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16); }

inline void Store(float& out, float x) { out = x; }
inline void Store(double& out, double x) { out = x; }
// Round to nearest even; NaN stays NaN.
inline void Store(Bf16& out, float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  out.bits = static_cast<uint16_t>(x != x ? 0x7fc0u : rounded);
}

// log(1 + u) for 0 <= u <= 1: 2 atanh(u / (2 + u)); the first dropped term is below 1e-9.
inline float Log1p(float u) {
  const float z = u / (2.0f + u);
  const float z2 = z * z;
  float p = 1.0f / 15;
  p = p * z2 + 1.0f / 13;
  p = p * z2 + 1.0f / 11;
  p = p * z2 + 1.0f / 9;
  p = p * z2 + 1.0f / 7;
  p = p * z2 + 1.0f / 5;
  p = p * z2 + 1.0f / 3;
  return 2.0f * z * (p * z2 + 1.0f);
}
inline double Log1p(double u) { return __builtin_log1p(u); }

template <typename A>
inline A Sigmoid(A x) {
  return A(1) / (A(1) + VectorExp(-x));
}

template <typename T>
inline Acc<T> SumOfSquares(const T* __restrict x, int64_t n) {
  Acc<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += Load(x[i]) * Load(x[i]);
  return sum;
}

inline float Sqrt(float x) { return __builtin_sqrtf(x); }
inline double Sqrt(double x) { return __builtin_sqrt(x); }

template <typename T>
inline Acc<T> Rstd(const T* x, int64_t n, double eps) {
  using A = Acc<T>;
  return A(1) / Sqrt(SumOfSquares(x, n) / static_cast<A>(n) + static_cast<A>(eps));
}

template <typename T>
void RmsNormForwardRows(const RmsNormForwardArgs<T>& a, int64_t begin, int64_t end) {
  const int64_t width = a.width;
  const T* __restrict weight = a.weight_D;
  for (int64_t t = begin; t < end; ++t) {
    const T* __restrict x = a.x_TD + t * width;
    T* __restrict y = a.y_TD + t * width;
    const Acc<T> rstd = Rstd(x, width, a.eps);
    a.rstd_T[t] = rstd;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) Store(y[i], Load(x[i]) * rstd * Load(weight[i]));
  }
}

// dx = rstd (dy w - x̂ mean(dy w x̂)), x̂ = x rstd; dw += dy x̂.
template <typename T>
void RmsNormBackwardRows(const RmsNormBackwardArgs<T>& a, int64_t begin, int64_t end, Acc<T>* __restrict partial) {
  using A = Acc<T>;
  const int64_t width = a.width;
  const T* __restrict weight = a.weight_D;
  for (int64_t t = begin; t < end; ++t) {
    const T* __restrict x = a.x_TD + t * width;
    const T* __restrict dy = a.dy_TD + t * width;
    T* __restrict dx = a.dx_TD + t * width;
    const A rstd = a.rstd_T[t];
    A dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < width; ++i) dot += Load(dy[i]) * Load(weight[i]) * Load(x[i]);
    const A mean = dot * rstd * rstd / static_cast<A>(width);
    if (a.residual_TD == nullptr) {
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) {
        const A d = Load(dy[i]), v = Load(x[i]);
        partial[i] += d * (v * rstd);
        Store(dx[i], rstd * (d * Load(weight[i]) - v * mean));
      }
    } else {
      const T* __restrict residual = a.residual_TD + t * width;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) {
        const A d = Load(dy[i]), v = Load(x[i]);
        partial[i] += d * (v * rstd);
        Store(dx[i], Load(residual[i]) + rstd * (d * Load(weight[i]) - v * mean));
      }
    }
  }
}

template <typename T>
void SwigluForwardRows(const SwigluForwardArgs<T>& a, int64_t begin, int64_t end) {
  using A = Acc<T>;
  const int64_t width = a.width;
  for (int64_t t = begin; t < end; ++t) {
    const T* __restrict gate = a.gate_up_TJ + t * 2 * width;
    const T* __restrict up = gate + width;
    T* __restrict y = a.y_TF + t * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const A g = Load(gate[i]);
      Store(y[i], g * Sigmoid(g) * Load(up[i]));
    }
  }
}

// silu'(g) = σ(g) (1 + g (1 - σ(g))).
template <typename T>
void SwigluBackwardRows(const SwigluBackwardArgs<T>& a, int64_t begin, int64_t end) {
  using A = Acc<T>;
  const int64_t width = a.width;
  for (int64_t t = begin; t < end; ++t) {
    const T* __restrict gate = a.gate_up_TJ + t * 2 * width;
    const T* __restrict up = gate + width;
    const T* __restrict dy = a.dy_TF + t * width;
    T* __restrict dgate = a.dgate_up_TJ + t * 2 * width;
    T* __restrict dup = dgate + width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const A g = Load(gate[i]), d = Load(dy[i]);
      const A s = Sigmoid(g);
      Store(dup[i], d * (g * s));
      Store(dgate[i], d * Load(up[i]) * (s * (A(1) + g * (A(1) - s))));
    }
  }
}

// One head of one row, and its norm.
template <typename T>
struct NormedHead {
  const T* x;
  Acc<T> rstd;
  const T* weight;
  int64_t half;  // of its elements
};

// out = rotate(x · rstd · weight): the first half's partner is the second half.
template <typename T>
inline void NormRotate(const NormedHead<T>& head, const Acc<T>* __restrict cos, const Acc<T>* __restrict sin,
                       T* __restrict out) {
  const T* __restrict x = head.x, * __restrict weight = head.weight;
  const Acc<T> rstd = head.rstd;
  const int64_t half = head.half;
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const Acc<T> a = Load(x[i]) * rstd * Load(weight[i]);
    const Acc<T> b = Load(x[i + half]) * rstd * Load(weight[i + half]);
    Store(out[i], a * cos[i] - b * sin[i]);
    Store(out[i + half], b * cos[i] + a * sin[i]);
  }
}

template <typename T>
inline void Rotate(const T* __restrict x, const Acc<T>* __restrict cos, const Acc<T>* __restrict sin, int64_t half,
                   T* __restrict out) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const Acc<T> a = Load(x[i]), b = Load(x[i + half]);
    Store(out[i], a * cos[i] - b * sin[i]);
    Store(out[i + half], b * cos[i] + a * sin[i]);
  }
}

template <typename T>
void QkvForwardRows(const QkvForwardArgs<T>& a, int64_t begin, int64_t end) {
  const int64_t size = a.head_size, half = size / 2, num_rotated = a.num_heads + a.num_kv_heads;
  const bool norm = a.k_weight_E != nullptr;
  for (int64_t t = begin; t < end; ++t) {
    const T* x = a.qkv_TJ + t * (num_rotated + a.num_kv_heads) * size;
    const Acc<T>* cos = a.cos_PE + a.positions_T[t] * half;
    const Acc<T>* sin = a.sin_PE + a.positions_T[t] * half;
    for (int64_t h = 0; h < num_rotated; ++h, x += size) {
      const bool is_q = h < a.num_heads;
      T* out = is_q ? a.q_HTE + (h * a.rows + t) * size : a.k_TKE + (t * a.num_kv_heads + h - a.num_heads) * size;
      if (norm) {
        const Acc<T> rstd = Rstd(x, size, a.eps);
        a.rstd_TJ[t * num_rotated + h] = rstd;
        NormRotate<T>({x, rstd, is_q ? a.q_weight_E : a.k_weight_E, half}, cos, sin, out);
      } else {
        Rotate(x, cos, sin, half, out);
      }
    }
    for (int64_t h = 0; h < a.num_kv_heads; ++h, x += size) {
      T* __restrict out = a.v_TKE + (t * a.num_kv_heads + h) * size;
      for (int64_t i = 0; i < size; ++i) out[i] = x[i];
    }
  }
}

// The transpose of Rotate.
template <typename T, typename G>
inline void Unrotate(const G* __restrict d, const Acc<T>* __restrict cos, const Acc<T>* __restrict sin, int64_t half,
                     T* __restrict out) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const Acc<T> a = Load(d[i]), b = Load(d[i + half]);
    Store(out[i], a * cos[i] + b * sin[i]);
    Store(out[i + half], b * cos[i] - a * sin[i]);
  }
}

// Unrotate, then RmsNorm's backward over the head, in two passes over a row that stays in the first-level cache.
template <typename T, typename G>
inline void UnrotateNorm(const G* __restrict d, const NormedHead<T>& head, const Acc<T>* __restrict cos,
                         const Acc<T>* __restrict sin, Acc<T>* __restrict partial, T* __restrict out) {
  using A = Acc<T>;
  const T* __restrict x = head.x, * __restrict weight = head.weight;
  const A rstd = head.rstd;
  const int64_t half = head.half;
  A dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < half; ++i) {
    const A a = Load(d[i]), b = Load(d[i + half]);
    dot += (a * cos[i] + b * sin[i]) * Load(weight[i]) * Load(x[i]);
    dot += (b * cos[i] - a * sin[i]) * Load(weight[i + half]) * Load(x[i + half]);
  }
  const A mean = dot * rstd * rstd / static_cast<A>(2 * half);
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const A a = Load(d[i]), b = Load(d[i + half]);
    const A low = a * cos[i] + b * sin[i], high = b * cos[i] - a * sin[i];
    const A x_low = Load(x[i]), x_high = Load(x[i + half]);
    partial[i] += low * (x_low * rstd);
    partial[i + half] += high * (x_high * rstd);
    Store(out[i], rstd * (low * Load(weight[i]) - x_low * mean));
    Store(out[i + half], rstd * (high * Load(weight[i + half]) - x_high * mean));
  }
}

template <typename T, typename G>
void QkvBackwardRows(const QkvBackwardArgs<T, G>& a, int64_t begin, int64_t end, Acc<T>* partial) {
  const int64_t size = a.head_size, half = size / 2, num_rotated = a.num_heads + a.num_kv_heads;
  const bool norm = a.k_weight_E != nullptr;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * (num_rotated + a.num_kv_heads) * size;
    const T* x = norm ? a.qkv_TJ + row : nullptr;
    T* out = a.dqkv_TJ + row;
    const Acc<T>* cos = a.cos_PE + a.positions_T[t] * half;
    const Acc<T>* sin = a.sin_PE + a.positions_T[t] * half;
    for (int64_t h = 0; h < a.num_heads; ++h, out += size) {
      const T* d = a.dq_HTE.data + h * a.dq_HTE.head_stride + t * a.dq_HTE.row_stride;
      if (norm) {
        UnrotateNorm<T, T>(d, {x + h * size, a.rstd_TJ[t * num_rotated + h], a.q_weight_E, half}, cos, sin, partial,
                           out);
      } else {
        Unrotate<T, T>(d, cos, sin, half, out);
      }
    }
    for (int64_t h = 0; h < a.num_kv_heads; ++h, out += size) {
      const G* d = a.dk_TKE.data + h * a.dk_TKE.head_stride + t * a.dk_TKE.row_stride;
      const int64_t slot = a.num_heads + h;
      if (norm) {
        UnrotateNorm<T, G>(d, {x + slot * size, a.rstd_TJ[t * num_rotated + slot], a.k_weight_E, half}, cos, sin,
                           partial + size, out);
      } else {
        Unrotate<T, G>(d, cos, sin, half, out);
      }
    }
    for (int64_t h = 0; h < a.num_kv_heads; ++h, out += size) {
      const G* __restrict d = a.dv_TKE.data + h * a.dv_TKE.head_stride + t * a.dv_TKE.row_stride;
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) Store(out[i], Load(d[i]));
    }
  }
}

template <typename T>
inline void MergeRow(const Acc<T>* __restrict own, const Acc<T>* __restrict ancestor, Acc<T> weight, int64_t n,
                     T* __restrict out) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) Store(out[i], own[i] + weight * (ancestor[i] - own[i]));
}

template <typename T>
void MergeRows(const MergeArgs<T>& a, int64_t begin, int64_t end) {
  using A = Acc<T>;
  const int64_t size = a.head_size;
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t h = 0; h < a.num_kv_heads * a.group; ++h) {
      const int64_t k = h / a.group, i = h % a.group;
      const AttentionPart<A>& b = a.own;
      const A* own = b.out + k * b.kv_stride + i * b.group_stride + t * b.row_stride;
      const A lse = b.lse[k * b.lse_kv_stride + i * b.lse_group_stride + t * b.lse_row_stride];
      T* __restrict out = a.o_TD + (t * a.num_kv_heads * a.group + h) * size;
      A* lse_out = a.lse_HT + h * a.lse_head_stride + t;
      if (a.ancestor.out == nullptr) {
#pragma omp simd
        for (int64_t e = 0; e < size; ++e) Store(out[e], own[e]);
        *lse_out = lse;
        continue;
      }
      const AttentionPart<A>& c = a.ancestor;
      const A* ancestor = c.out + k * c.kv_stride + i * c.group_stride + t * c.row_stride;
      const A diff = c.lse[k * c.lse_kv_stride + i * c.lse_group_stride + t * c.lse_row_stride] - lse;
      const A small = VectorExp(diff < 0 ? diff : -diff);  // e^-|diff|
      const A larger = A(1) / (A(1) + small);
      MergeRow<T>(own, ancestor, diff < 0 ? small * larger : larger, size, out);
      *lse_out = lse + (diff < 0 ? A(0) : diff) + Log1p(small);
    }
  }
}

template <typename T>
inline void AddRows(const Acc<T>* __restrict first, const Acc<T>* __restrict second, int64_t n, T* __restrict out) {
  if (second == nullptr) {
#pragma omp simd
    for (int64_t e = 0; e < n; ++e) Store(out[e], first[e]);
  } else {
#pragma omp simd
    for (int64_t e = 0; e < n; ++e) Store(out[e], first[e] + second[e]);
  }
}

template <typename T>
void CombineHeadsRows(const CombineHeadsArgs<T>& a, int64_t begin, int64_t end) {
  using A = Acc<T>;
  for (int64_t k = 0; k < a.num_kv_heads; ++k) {
    for (int64_t t = begin; t < end; ++t) {
      const A* first = a.first.data + k * a.first.kv_stride + t * a.first.row_stride;
      const A* second = a.second.data;
      if (second != nullptr) second += k * a.second.kv_stride + t * a.second.row_stride;
      for (int64_t i = 0; i < a.group; ++i) {
        AddRows<T>(first + i * a.first.group_stride, second == nullptr ? nullptr : second + i * a.second.group_stride,
                   a.head_size, a.out + (k * a.group + i) * a.out_head_stride + t * a.head_size);
      }
    }
  }
}

template <typename T>
void EmbeddingBackwardColumns(const EmbeddingBackwardArgs<T>& a, int64_t begin, int64_t end) {
  for (int64_t t = 0; t < a.rows; ++t) {
    const int64_t token = a.tokens_T[t];
    if (token < 0) continue;
    const T* __restrict dx = a.dx_TD + t * a.width;
    Acc<T>* __restrict dweight = a.dweight_VD + token * a.width;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) dweight[i] += Load(dx[i]);
  }
}

template <typename T>
constexpr RowTable<T> MakeRowTable() {
  return {RmsNormForwardRows<T>, RmsNormBackwardRows<T>,     SwigluForwardRows<T>,       SwigluBackwardRows<T>,
          QkvForwardRows<T>,     QkvBackwardRows<T, T>,      QkvBackwardRows<T, Acc<T>>, MergeRows<T>,
          CombineHeadsRows<T>,   EmbeddingBackwardColumns<T>};
}

}  // namespace

const KernelTable kTable = {STEMMA_ISA_NAME, MakeRowTable<float>(), MakeRowTable<double>(), MakeRowTable<Bf16>()};

}  // namespace stemma::worker::kernels::STEMMA_ISA
