// The loops over a block of scores, compiled once per instruction set into the namespace STEMMA_ISA. Plain loops that
// the compiler vectorises, and tiles of products; no inline function of a header that another file could also have
// built (see rowwise_rows.cc).
#include "common/cost/kernel_blocks.h"
#include "worker/backend/cpu/attention_table.h"
#include "worker/backend/cpu/tile_product.h"
#include "worker/backend/cpu/transpose.h"
#include "worker/backend/cpu/vector_exp.h"

namespace stemma::worker::kernels::STEMMA_ISA {
namespace {

static_assert(kAttentionPanel % kPanel<float> == 0 && kAttentionPanel % kPanel<double> == 0,
              "scratch is counted in panels of kAttentionPanel elements");
static_assert(kAttentionQueryBlock % kAttentionPanel == 0, "whole vectors of queries end within their block");

inline int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }

template <typename T>
inline int64_t WholeVectors(int64_t count) {
  return (count + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

// Keys that query r sees.
template <typename T>
inline int64_t KeysSeen(const ScoreBlock<T>& block, int64_t r) {
  return block.diagonal ? Min(block.first_visible + r, block.keys) : block.keys;
}

// The first query that sees key c.
template <typename T>
inline int64_t FirstSeeing(const ScoreBlock<T>& block, int64_t c) {
  return block.diagonal ? Max(0, c - block.first_visible + 1) : 0;
}

inline float Widen(float x) { return x; }
inline double Widen(double x) { return x; }
inline float Widen(Bf16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16); }

// Panels over the head's elements, [head_size / kPanel][count][kPanel]. What follows the head's elements in the last
// panel stays as it is: no sum over it is stored.
template <typename T, typename Held>
void Pack(StridedRows<const Held> rows, int64_t count, int64_t head_size, T* packed) {
  constexpr int64_t kLine = 64 / sizeof(Held), kAhead = 8;  // rows lie far apart: the processor does not foresee them
  for (int64_t first = 0; first < head_size; first += kPanel<T>) {
    const int64_t columns = Min(kPanel<T>, head_size - first);
    for (int64_t row = 0; row < count; ++row, packed += kPanel<T>) {
      const Held* __restrict from = rows.data + row * rows.row + first;
      T* __restrict to = packed;
      for (int64_t i = 0; i < kPanel<T>; i += kLine) __builtin_prefetch(from + kAhead * rows.row + i);
      if (columns == kPanel<T>) {
#pragma omp simd
        for (int64_t i = 0; i < kPanel<T>; ++i) to[i] = Widen(from[i]);
      } else {
        for (int64_t i = 0; i < columns; ++i) to[i] = Widen(from[i]);
      }
    }
  }
}

// Panels over the rows, [count / kPanel][head_size][kPanel]; rows up to whole vectors are zero.
template <typename T>
void PackTransposed(StridedRows<const T> rows, int64_t count, int64_t head_size, T* packed) {
  for (int64_t first = 0; first < count; first += kLanes<T>) {
    T* to = packed + first / kPanel<T> * kPanel<T> * head_size + first % kPanel<T>;
    TransposeRows(rows.data + first * rows.row, rows.row, Min(kLanes<T>, count - first), head_size, to, kPanel<T>);
  }
}

// Rows of the left-hand operand that lie packed: the product over all panels.
template <int kRows, int kVectors, typename T>
inline void ScoreTile(const T* keys, int64_t num_keys, const T* queries, int64_t head_size, T* scores, int64_t stride) {
  Tile<T, kRows, kVectors> tile;
  ClearTile(tile);
  for (int64_t first = 0; first < head_size; first += kPanel<T>) {
    AddProducts(Left<T, int64_t, Adjacent>{keys + first * num_keys, kPanel<T>, {}}, queries + first * kPanel<T>,
                Min(kPanel<T>, head_size - first), tile);
  }
  StoreTile(tile, scores, stride);
}

template <typename T>
void Scores(const ScoreBlock<T>& block, const T* keys, const T* queries, int64_t head_size) {
  for (int64_t first = 0; first < block.queries; first += kPanel<T>) {
    const int64_t last = Min(first + kPanel<T>, block.queries) - 1;
    const T* panel = queries + first * head_size;
    ForTiles<kTileRows>(0, KeysSeen(block, last), [&]<int kRows>(int64_t key) {
      const T* left = keys + key * kPanel<T>;
      T* scores = block.scores + key * block.stride + first;
      if (last < first + kLanes<T>) {
        ScoreTile<kRows, 1>(left, block.keys, panel, head_size, scores, block.stride);
      } else if (FirstSeeing(block, key) >= first + kLanes<T>) {
        ScoreTile<kRows, 1>(left, block.keys, panel + kLanes<T>, head_size, scores + kLanes<T>, block.stride);
      } else {
        ScoreTile<kRows, 2>(left, block.keys, panel, head_size, scores, block.stride);
      }
    });
  }
}

// One tile of a sum over keys or queries, for `columns` of the head's elements.
template <int kRows, typename T, typename Row, typename Inner>
inline void SumTile(Left<T, Row, Inner> left, const T* panel, int64_t count, bool add, int64_t columns,
                    StridedRows<T> out) {
  if (columns <= kLanes<T>) {
    MultiplyTile<kRows, 1>(left, panel, count, add, columns, out.data, out.row);
  } else {
    MultiplyTile<kRows, 2>(left, panel, count, add, columns, out.data, out.row);
  }
}

template <typename T>
void SumOverKeys(const ScoreBlock<T>& block, const T* x, int64_t head_size, bool add, StridedRows<T> out) {
  for (int64_t first = 0; first < head_size; first += kPanel<T>) {
    const int64_t columns = Min(kPanel<T>, head_size - first);
    ForTiles<kTileRows>(0, block.queries, [&]<int kRows>(int64_t query) {
      SumTile<kRows>(Left<T, Adjacent, int64_t>{block.scores + query, {}, block.stride}, x + first * block.keys,
                     KeysSeen(block, query + kRows - 1), add, columns, {out.data + query * out.row + first, out.row});
    });
  }
}

template <typename T>
void SumOverQueries(const ScoreBlock<T>& block, const T* x, int64_t head_size, StridedRows<T> out) {
  for (int64_t first = 0; first < head_size; first += kPanel<T>) {
    const int64_t columns = Min(kPanel<T>, head_size - first);
    ForTiles<kTileRows>(0, block.keys, [&]<int kRows>(int64_t key) {
      const int64_t query = FirstSeeing(block, key);
      SumTile<kRows>(Left<T, int64_t, Adjacent>{block.scores + key * block.stride + query, block.stride, {}},
                     x + first * block.queries + query * kPanel<T>, block.queries - query, true, columns,
                     {out.data + key * out.row + first, out.row});
    });
  }
}

// Calls use.operator()<masked>(scores of key c, begin, end) for parts of the queries that see the key: first those of
// the vector that not all see (masked), where there is one, then the rest. Queries before them get `clear`.
template <typename T, typename Clear, typename Use>
inline void ForKeys(const ScoreBlock<T>& block, const Clear& clear, const Use& use) {
  const int64_t end = WholeVectors<T>(block.queries);
  for (int64_t c = 0; c < block.keys; ++c) {
    T* s = block.scores + c * block.stride;
    const int64_t seeing = FirstSeeing(block, c);
    int64_t begin = seeing / kLanes<T> * kLanes<T>;
    clear(s, begin);
    if (begin < seeing) {
      use.template operator()<true>(s, begin, begin + kLanes<T>, static_cast<int>(seeing - begin));
      begin += kLanes<T>;
    }
    use.template operator()<false>(s, begin, end, 0);
  }
}

// Says whether a lane of a vector whose first `hidden` lanes do not see the key sees it.
template <bool kMasked>
inline bool Sees(int lane, int hidden) {
  return !kMasked || lane >= hidden;
}

template <bool kMasked, typename T>
inline void RaiseMaxima(const T* __restrict s, int count, int hidden, T* __restrict max) {
#pragma omp simd
  for (int r = 0; r < count; ++r) max[r] = Sees<kMasked>(r, hidden) && s[r] > max[r] ? s[r] : max[r];
}

template <bool kMasked, typename T>
inline void Exponentials(T* __restrict s, int count, int hidden, T scale, const T* __restrict max, T* __restrict sum) {
#pragma omp simd
  for (int r = 0; r < count; ++r) {
    const T e = Sees<kMasked>(r, hidden) ? VectorExpBelow89(scale * (s[r] - max[r])) : T(0);
    s[r] = e;
    sum[r] += e;
  }
}

template <typename T>
inline void ClearRange(T* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] = 0;
}

template <typename T>
inline void Multiply(T* __restrict x, int64_t count, T factor) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

template <typename T>
void SoftmaxBlock(const ScoreBlock<T>& block, bool first, T* max, T* sum, int64_t head_size, StridedRows<T> out) {
  const int64_t lanes = WholeVectors<T>(block.queries);
  T before[kAttentionQueryBlock];
  for (int64_t r = 0; r < lanes; ++r) {
    if (first) max[r] = -static_cast<T>(__builtin_inff());
    before[r] = max[r];
  }
  ForKeys(
      block, [](T*, int64_t) {},
      [&]<bool kMasked>(const T* s, int64_t begin, int64_t end, int hidden) {
        RaiseMaxima<kMasked>(s + begin, static_cast<int>(end - begin), hidden, max + begin);
      });
  for (int64_t r = 0; r < lanes; ++r) {
    const T factor = first ? T(0) : VectorExpBelow89(block.scale * (before[r] - max[r]));
    sum[r] = first ? T(0) : sum[r] * factor;
    if (!first && factor != T(1) && r < block.queries) Multiply(out.data + r * out.row, head_size, factor);
  }
  ForKeys(
      block, [](T* s, int64_t hidden) { ClearRange(s, hidden); },
      [&]<bool kMasked>(T* s, int64_t begin, int64_t end, int hidden) {
        Exponentials<kMasked>(s + begin, static_cast<int>(end - begin), hidden, block.scale, max + begin, sum + begin);
      });
}

template <typename T>
void Normalize(const T* max, const T* sum, T scale, int64_t rows, int64_t head_size, StridedRows<T> out, T* lse,
               int64_t lse_row) {
  for (int64_t r = 0; r < rows; ++r) {
    Multiply(out.data + r * out.row, head_size, T(1) / sum[r]);
    lse[r * lse_row] = scale * max[r] + static_cast<T>(__builtin_log(static_cast<double>(sum[r])));
  }
}

template <bool kMasked, typename T>
inline void BackwardRow(T* __restrict s, T* __restrict dp, int count, int hidden, T scale, const T* __restrict lse,
                        const T* __restrict delta) {
#pragma omp simd
  for (int r = 0; r < count; ++r) {
    const T p = VectorExpBelow89(scale * s[r] - lse[r]), ds = scale * p * (dp[r] - delta[r]);
    s[r] = Sees<kMasked>(r, hidden) ? p : T(0);
    dp[r] = Sees<kMasked>(r, hidden) ? ds : T(0);
  }
}

template <typename T>
void BackwardBlock(const ScoreBlock<T>& block, const T* lse, const T* delta, T* dp) {
  ForKeys(
      block,
      [&](T* s, int64_t hidden) {
        ClearRange(s, hidden);
        ClearRange(dp + (s - block.scores), hidden);
      },
      [&]<bool kMasked>(T* s, int64_t begin, int64_t end, int hidden) {
        BackwardRow<kMasked>(s + begin, dp + (s - block.scores) + begin, static_cast<int>(end - begin), hidden,
                             block.scale, lse + begin, delta + begin);
      });
}

template <typename T>
void Delta(StridedRows<const T> dout, StridedRows<const T> out, int64_t rows, int64_t head_size, T* delta) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* __restrict a = dout.data + r * dout.row;
    const T* __restrict b = out.data + r * out.row;
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t e = 0; e < head_size; ++e) sum += a[e] * b[e];
    delta[r] = sum;
  }
}

template <typename T>
constexpr AttentionLoopsOf<T> MakeLoops() {
  return {.pack = Pack<T, T>,
          .pack_bf16 = Pack<T, Bf16>,
          .pack_transposed = PackTransposed<T>,
          .scores = Scores<T>,
          .sum_over_keys = SumOverKeys<T>,
          .sum_over_queries = SumOverQueries<T>,
          .softmax = SoftmaxBlock<T>,
          .normalize = Normalize<T>,
          .backward = BackwardBlock<T>,
          .delta = Delta<T>};
}

}  // namespace

const AttentionLoops kAttentionLoops = {STEMMA_ISA_NAME, MakeLoops<float>(), MakeLoops<double>()};

}  // namespace stemma::worker::kernels::STEMMA_ISA
