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

// Keys that query r sees, at least one.
template <typename T>
inline int64_t KeysSeen(const ScoreBlock<T>& block, int64_t r) {
  return block.diagonal ? Min(block.first_visible + r, block.keys) : block.keys;
}

// The first query that sees key c.
template <typename T>
inline int64_t FirstSeeing(const ScoreBlock<T>& block, int64_t c) {
  return block.diagonal ? Max(0, c - block.first_visible + 1) : 0;
}

// e^x of numbers that are at most 89.
template <typename T>
inline Vector<T> ExpBelow89(Vector<T> x) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return ExpBelow89Of<Vector<float>, Vector<uint32_t>>(x);
  } else {
    for (int lane = 0; lane < kLanes<T>; ++lane) x[lane] = VectorExpBelow89(x[lane]);
    return x;
  }
}

inline float Widen(float x) { return x; }
inline double Widen(double x) { return x; }
inline float Widen(Bf16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16); }

// Panels over the head's elements, [head_size / kPanel][count][kPanel]. What follows the head's elements in the last
// panel is zero: no sum over it is stored, but it is computed, and takes a hundred times as long where the scratch
// holds numbers that lead to subnormal ones.
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
        for (int64_t i = columns; i < kPanel<T>; ++i) to[i] = 0;
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

// Rows of the left-hand operand that lie packed: the product over all panels of the head's elements.
template <int kRows, int kVectors, typename T>
inline void ScoreTile(const T* keys, int64_t num_keys, const T* queries, int64_t head_size, T* scores, int64_t stride) {
  Tile<T, kRows, kVectors> tile;
  ClearTile(tile);
  for (int64_t first = 0; first < head_size; first += kPanel<T>) {
    AddProducts(Left<T, Fixed<kPanel<T>>, Fixed<1>>{keys + first * num_keys, {}, {}}, queries + first * kPanel<T>,
                Min(kPanel<T>, head_size - first), tile);
  }
  StoreTile(tile, scores, stride);
}

// A panel of a block's queries.
struct QueryPanel {
  int64_t first, last;
};

template <typename T>
inline QueryPanel PanelAt(const ScoreBlock<T>& block, int64_t first) {
  return {first, Min(first + kPanel<T>, block.queries) - 1};
}

// The two operands of a block of scores, packed.
template <typename T>
struct ScoreOperands {
  const T *keys, *queries;  // the queries transposed
  int64_t head_size;
};

// Scores of a panel's queries and of keys [key, key + kRows), into `scores`, which lies as the block's do. A vector of
// queries none of which sees one of the keys is left out.
template <int kRows, typename T>
inline void PanelTile(const ScoreBlock<T>& block, const QueryPanel& panel, int64_t key, ScoreOperands<T> operands,
                      T* scores) {
  const int64_t head_size = operands.head_size;
  const T* left = operands.keys + key * kPanel<T>;
  const T* right = operands.queries + panel.first * head_size;
  T* to = scores + key * block.stride + panel.first;
  if (panel.last < panel.first + kLanes<T>) {
    ScoreTile<kRows, 1>(left, block.keys, right, head_size, to, block.stride);
  } else if (FirstSeeing(block, key) >= panel.first + kLanes<T>) {
    ScoreTile<kRows, 1>(left, block.keys, right + kLanes<T>, head_size, to + kLanes<T>, block.stride);
  } else {
    ScoreTile<kRows, 2>(left, block.keys, right, head_size, to, block.stride);
  }
}

// One tile of a sum over keys or queries, for `columns` of the head's elements.
template <int kRows, typename T, typename Row, typename Inner>
inline void SumTile(Left<T, Row, Inner> left, const T* panel, int64_t count, bool add, int64_t columns,
                    StridedRows<T> out) {
  if (columns <= kLanes<T>) {
    MultiplyTile<kRows, 1>(left, panel, count, add, TileRows<T>{out.data, out.row, columns});
  } else {
    MultiplyTile<kRows, 2>(left, panel, count, add, TileRows<T>{out.data, out.row, columns});
  }
}

template <typename T>
void SumOverKeys(const ScoreBlock<T>& block, const T* x, int64_t head_size, bool add, StridedRows<T> out) {
  for (int64_t first = 0; first < head_size; first += kPanel<T>) {
    const int64_t columns = Min(kPanel<T>, head_size - first);
    ForTiles<kTileRows>(0, block.queries, [&]<int kRows>(int64_t query) {
      SumTile<kRows>(Left<T, Fixed<1>, int64_t>{block.scores + query, {}, block.stride}, x + first * block.keys,
                     KeysSeen(block, query + kRows - 1), add, columns, {out.data + query * out.row + first, out.row});
    });
  }
}

template <typename T, typename Stride>
inline void SumOverQueriesAt(const ScoreBlock<T>& block, Stride stride, const T* x, int64_t head_size,
                             StridedRows<T> out) {
  for (int64_t first = 0; first < head_size; first += kPanel<T>) {
    const int64_t columns = Min(kPanel<T>, head_size - first);
    ForTiles<kTileRows>(0, block.keys, [&]<int kRows>(int64_t key) {
      const int64_t query = FirstSeeing(block, key);
      SumTile<kRows>(Left<T, Stride, Fixed<1>>{block.scores + key * stride + query, stride, {}},
                     x + first * block.queries + query * kPanel<T>, block.queries - query, true, columns,
                     {out.data + key * out.row + first, out.row});
    });
  }
}

// Whole blocks, of which long calls are made, have loops of their own, for their stride.
template <typename T>
void SumOverQueries(const ScoreBlock<T>& block, const T* x, int64_t head_size, StridedRows<T> out) {
  constexpr Fixed<kAttentionQueryBlock + kAttentionScorePad> kOfWholeBlocks;
  if (block.stride == kOfWholeBlocks) {
    SumOverQueriesAt(block, kOfWholeBlocks, x, head_size, out);
  } else {
    SumOverQueriesAt(block, block.stride, x, head_size, out);
  }
}

// Lane i holds i.
template <typename T>
inline VectorMask<T> LaneNumbers() {
  VectorMask<T> numbers{};
  for (int lane = 0; lane < kLanes<T>; ++lane) numbers[lane] = lane;
  return numbers;
}

// A vector of queries: the first `seen_by_all` keys are seen by each of them, the keys from there to `seen` by some.
struct Lanes {
  int64_t seen_by_all, seen;
};

template <typename T>
inline Lanes LanesAt(const ScoreBlock<T>& block, int64_t query) {
  return {KeysSeen(block, query), KeysSeen(block, query + kLanes<T> - 1)};
}

// Says of each query of the vector at `query` whether it sees key c.
template <typename T>
inline VectorMask<T> Sees(const ScoreBlock<T>& block, int64_t query, int64_t c) {
  return LaneNumbers<T>() >= VectorMask<T>{} + static_cast<int>(FirstSeeing(block, c) - query);
}

// Returns `max`, raised to the scores of one vector of queries.
template <typename T>
inline Vector<T> Maxima(const ScoreBlock<T>& block, int64_t query, const Lanes& lanes, Vector<T> max) {
  constexpr int kChains = 4;  // one maximum waits for the one before it
  const T* s = block.scores + query;
  Vector<T> maxima[kChains] = {max, max, max, max};
  int64_t c = 0;
  for (; c + kChains <= lanes.seen_by_all; c += kChains) {
#pragma GCC unroll 4
    for (int i = 0; i < kChains; ++i) {
      const Vector<T> x = LoadVector(s + (c + i) * block.stride);
      maxima[i] = x > maxima[i] ? x : maxima[i];
    }
  }
  for (; c < lanes.seen; ++c) {
    const Vector<T> x = LoadVector(s + c * block.stride);
    maxima[0] = (x > maxima[0]) & Sees(block, query, c) ? x : maxima[0];
  }
  for (int i = 1; i < kChains; ++i) maxima[0] = maxima[i] > maxima[0] ? maxima[i] : maxima[0];
  return maxima[0];
}

// Turns scores of one vector of queries into exponentials; returns `sum` with them added.
template <typename T>
inline Vector<T> Exponentials(const ScoreBlock<T>& block, int64_t query, const Lanes& lanes, Vector<T> max,
                              Vector<T> sum) {
  T* s = block.scores + query;
  const T scale = block.scale;
  int64_t c = 0;
  for (; c < lanes.seen_by_all; ++c, s += block.stride) {
    const Vector<T> e = ExpBelow89<T>(scale * (LoadVector(s) - max));
    StoreVector(s, e);
    sum += e;
  }
  for (; c < lanes.seen; ++c, s += block.stride) {
    const Vector<T> e = ExpBelow89<T>(scale * (LoadVector(s) - max));
    const Vector<T> seen = Sees(block, query, c) ? e : Vector<T>{};
    StoreVector(s, seen);
    sum += seen;
  }
  for (; c < block.keys; ++c, s += block.stride) StoreVector(s, Vector<T>{});
  return sum;
}

template <typename T>
inline void Multiply(T* __restrict x, int64_t count, T factor) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

// Turns the scores of one vector of queries into exponentials, and brings what the forward keeps of them up to date.
template <typename T>
inline void SoftmaxVector(const ScoreBlock<T>& block, int64_t query, const SoftmaxState<T>& softmax) {
  const bool first = softmax.first;
  const Lanes lanes = LanesAt(block, query);
  const Vector<T> before = first ? Vector<T>{} - static_cast<T>(__builtin_inff()) : LoadVector(softmax.max + query);
  const Vector<T> now = Maxima(block, query, lanes, before);
  const Vector<T> factor = first ? Vector<T>{} : ExpBelow89<T>(block.scale * (before - now));
  for (int lane = 0; !first && lane < Min(kLanes<T>, block.queries - query); ++lane) {
    if (factor[lane] == T(1)) continue;
    Multiply(softmax.out.data + (query + lane) * softmax.out.row, softmax.head_size, factor[lane]);
  }
  const Vector<T> scaled = first ? Vector<T>{} : LoadVector(softmax.sum + query) * factor;
  StoreVector(softmax.max + query, now);
  StoreVector(softmax.sum + query, Exponentials(block, query, lanes, now, scaled));
}

// Goes by panels: their scores stay in the first-level cache until they are exponentials.
template <typename T>
void SoftmaxBlock(const ScoreBlock<T>& block, const T* keys, const T* queries, const SoftmaxState<T>& softmax) {
  for (int64_t first = 0; first < block.queries; first += kPanel<T>) {
    const QueryPanel panel = PanelAt(block, first);
    ForTiles<kTileRows>(0, KeysSeen(block, panel.last), [&]<int kRows>(int64_t key) {
      PanelTile<kRows>(block, panel, key, ScoreOperands<T>{keys, queries, softmax.head_size}, block.scores);
    });
    for (int64_t query = first; query <= panel.last; query += kLanes<T>) SoftmaxVector(block, query, softmax);
  }
}

template <typename T>
void Normalize(const SoftmaxState<T>& softmax, T scale, int64_t rows, StridedRows<T> lse) {
  for (int64_t r = 0; r < rows; ++r) {
    const T sum = softmax.sum[r];
    Multiply(softmax.out.data + r * softmax.out.row, softmax.head_size, T(1) / sum);
    lse.data[r * lse.row] = scale * softmax.max[r] + static_cast<T>(__builtin_log(static_cast<double>(sum)));
  }
}

// Turns scores and dO·v of one vector of queries and of keys [begin, end) into p and the scores' gradients.
template <bool kMasked, typename T>
inline void BackwardVector(const ScoreBlock<T>& block, int64_t query, int64_t begin, int64_t end,
                           const BackwardOperands<T>& backward) {
  const Vector<T> lse = LoadVector(backward.lse + query), delta = LoadVector(backward.delta + query);
  const T scale = block.scale;
  T* s = block.scores + begin * block.stride + query;
  T* dp = backward.dp + begin * block.stride + query;
  for (int64_t c = begin; c < end; ++c, s += block.stride, dp += block.stride) {
    const VectorMask<T> seen = kMasked ? Sees(block, query, c) : ~VectorMask<T>{};
    // No probability is above 1: where scores are large, their sums in another order than the forward's would make it
    // so.
    const Vector<T> log_p = scale * LoadVector(s) - lse;
    const Vector<T> p = ExpBelow89<T>(log_p > T(0) ? Vector<T>{} : log_p), ds = scale * p * (LoadVector(dp) - delta);
    StoreVector(s, seen ? p : Vector<T>{});
    StoreVector(dp, seen ? ds : Vector<T>{});
  }
}

// Goes by tiles: each is still in the first-level cache when its exponentials are taken.
template <typename T>
void BackwardBlock(const ScoreBlock<T>& block, const T* keys, const T* values, const BackwardOperands<T>& backward) {
  for (int64_t first = 0; first < block.queries; first += kPanel<T>) {
    const QueryPanel panel = PanelAt(block, first);
    const int64_t seen = KeysSeen(block, panel.last);
    ForTiles<kTileRows>(0, seen, [&]<int kRows>(int64_t key) {
      PanelTile<kRows>(block, panel, key, ScoreOperands<T>{keys, backward.q, backward.head_size}, block.scores);
      PanelTile<kRows>(block, panel, key, ScoreOperands<T>{values, backward.dout, backward.head_size}, backward.dp);
      for (int64_t query = first; query <= panel.last; query += kLanes<T>) {
        if (FirstSeeing(block, key + kRows - 1) <= query) {
          BackwardVector<false>(block, query, key, key + kRows, backward);
        } else {
          BackwardVector<true>(block, query, key, key + kRows, backward);
        }
      }
    });
    for (int64_t c = seen; c < block.keys; ++c) {
      for (int64_t query = first; query <= panel.last; query += kLanes<T>) {
        StoreVector(block.scores + c * block.stride + query, Vector<T>{});
        StoreVector(backward.dp + c * block.stride + query, Vector<T>{});
      }
    }
  }
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
          .softmax = SoftmaxBlock<T>,
          .backward = BackwardBlock<T>,
          .sum_over_keys = SumOverKeys<T>,
          .sum_over_queries = SumOverQueries<T>,
          .normalize = Normalize<T>,
          .delta = Delta<T>};
}

}  // namespace

const AttentionLoops kAttentionLoops = {STEMMA_ISA_NAME, MakeLoops<float>(), MakeLoops<double>()};

}  // namespace stemma::worker::kernels::STEMMA_ISA
