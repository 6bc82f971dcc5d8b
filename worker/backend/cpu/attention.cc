#include "worker/backend/cpu/attention.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "common/cost/kernel_blocks.h"
#include "worker/backend/cpu/attention_table.h"
#include "worker/backend/cpu/rowwise_table.h"

// LibTorch's BLAS, column-major. Within a parallel region it runs in one thread.
extern "C" {
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k, const float* alpha,
            const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
            const int* ldc);
void dgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k, const double* alpha,
            const double* a, const int* lda, const double* b, const int* ldb, const double* beta, double* c,
            const int* ldc);
}

namespace stemma::worker::kernels {
namespace {

constexpr int64_t kKeyBlock = kAttentionKeyBlock;
static_assert(kKeyBlock % kAttentionQueryBlock == 0 && kKeyBlock % kAttentionShortQueryBlock == 0,
              "a block of queries never begins before the keys of the block on its diagonal");

int64_t QueryBlock(const AttentionSize& size) { return AttentionQueryBlock(size.queries, size.causal); }

// Elements of a piece of scratch. Each piece begins at a multiple of 64 bytes, whichever thread's it is: how BLAS
// rounds may depend on where its operands lie.
int64_t Piece(int64_t elements) {
  constexpr int64_t kAligned = 16;
  return (elements + kAligned - 1) / kAligned * kAligned;
}

int64_t ScoresOf(const AttentionSize& size) {
  return Piece(std::min(QueryBlock(size), size.queries) * std::min(kKeyBlock, size.keys));
}

int64_t DeltaOf(const AttentionSize& size) { return Piece(size.queries); }

// The same instruction set as the other row kernels.
template <typename T>
const AttentionLoopsOf<T>& Loops() {
  const auto of = [](const AttentionLoops& loops) -> const AttentionLoopsOf<T>& {
    if constexpr (std::is_same_v<T, float>) {
      return loops.f32;
    } else {
      return loops.f64;
    }
  };
#if defined(STEMMA_HAVE_X86_LEVELS)
  if (&ChosenTable() == &isa_v4::kTable) return of(isa_v4::kAttentionLoops);
  if (&ChosenTable() == &isa_v3::kTable) return of(isa_v3::kAttentionLoops);
#endif
  return of(isa_baseline::kAttentionLoops);
}

// A row-major matrix, `row` elements from row to row.
template <typename T>
struct Matrix {
  T* data;
  int64_t row;
};

// c = op(a) op(b) + beta c, all row-major; c is rows x columns, `inner` the length of the sums.
template <typename T>
void Gemm(bool transpose_a, bool transpose_b, int64_t rows, int64_t columns, int64_t inner, Matrix<const T> a,
          Matrix<const T> b, T beta, Matrix<T> c) {
  // Column-major, the same memory holds the transposes: c' = op(b)' op(a)'.
  const char flag_a = transpose_a ? 'T' : 'N', flag_b = transpose_b ? 'T' : 'N';
  const int m = static_cast<int>(columns), n = static_cast<int>(rows), k = static_cast<int>(inner);
  const int lda = static_cast<int>(a.row), ldb = static_cast<int>(b.row), ldc = static_cast<int>(c.row);
  const T alpha = 1;
  if constexpr (std::is_same_v<T, float>) {
    sgemm_(&flag_b, &flag_a, &m, &n, &k, &alpha, b.data, &ldb, a.data, &lda, &beta, c.data, &ldc);
  } else {
    dgemm_(&flag_b, &flag_a, &m, &n, &k, &alpha, b.data, &ldb, a.data, &lda, &beta, c.data, &ldc);
  }
}

template <typename T>
Matrix<const T> Const(Matrix<T> m) {
  return {m.data, m.row};
}

// Rows [first_query, first_query + rows) of one query head, keys [first_key, first_key + columns).
template <typename T>
ScoreBlock<T> BlockOf(const AttentionSize& size, T* scores, int64_t first_query, int64_t rows, int64_t first_key,
                      int64_t columns) {
  return {.scores = scores,
          .rows = rows,
          .columns = columns,
          .diagonal = size.causal && first_key + columns > first_query,
          .first_visible = first_query - first_key + 1,
          .scale = static_cast<T>(size.scale)};
}

struct Head {
  int64_t b, k, i;
};

template <typename T>
Matrix<T> RowsOf(const AttentionRows<T>& x, const Head& head, int64_t row) {
  return {x.At(head.b, head.k, head.i, row), x.row};
}

template <typename T>
Matrix<T> KeysOf(const AttentionRows<T>& x, const Head& head, int64_t row) {
  return {x.At(head.b, head.k, 0, row), x.row};
}

// Elements of one block of widened keys or values.
template <typename T, typename Kv>
int64_t WidenedOf(const AttentionSize& size) {
  return std::is_same_v<T, Kv> ? 0 : Piece(std::min(kKeyBlock, size.keys) * size.head_size);
}

// Keys or values [key, key + columns) as T: where they lie, or widened into `scratch`.
template <typename T, typename Kv>
Matrix<const T> WidenedKeys(const AttentionRows<const Kv>& x, const Head& head, int64_t key, int64_t columns,
                            int64_t head_size, T* scratch) {
  const Matrix<const Kv> keys = KeysOf(x, head, key);
  if constexpr (std::is_same_v<T, Kv>) {
    return keys;
  } else {
    for (int64_t row = 0; row < columns; ++row) {
      std::transform(keys.data + row * keys.row, keys.data + row * keys.row + head_size, scratch + row * head_size,
                     [](Bf16 element) { return std::bit_cast<float>(uint32_t{element.bits} << 16); });
    }
    return {scratch, head_size};
  }
}

template <typename T, typename Kv>
void ForwardQueries(const AttentionForwardArgs<T, Kv>& a, const Head& head, int64_t first, T* scores) {
  const AttentionSize& size = a.size;
  const int64_t rows = std::min(QueryBlock(size), size.queries - first);
  const int64_t keys = size.causal ? first + rows : size.keys;
  const Matrix<T> out = RowsOf(a.out, head, first);
  T* widened = scores + ScoresOf(size);  // of keys, then of values
  RowSoftmax<T> softmax[kAttentionQueryBlock];
  for (int64_t key = 0; key < keys; key += kKeyBlock) {
    const int64_t columns = std::min(kKeyBlock, keys - key);
    const auto block = [&](const AttentionRows<const Kv>& x) {
      return WidenedKeys<T>(x, head, key, columns, size.head_size, widened);
    };
    const Matrix<T> s{scores, columns};
    Gemm<T>(false, true, rows, columns, size.head_size, RowsOf(a.q, head, first), block(a.k), 0, s);
    Loops<T>().softmax(BlockOf(size, scores, first, rows, key, columns), key == 0, softmax, out.data, out.row,
                       size.head_size);
    Gemm<T>(false, false, rows, size.head_size, columns, Const(s), block(a.v), key == 0 ? 0 : 1, out);
  }
  Loops<T>().normalize(softmax, static_cast<T>(size.scale), rows, size.head_size, out.data, out.row,
                       a.lse.At(head.b, head.k, head.i, first), a.lse.row);
}

// Keys [first, first + count) of one kv head and their values.
template <typename T>
struct KeyBlock {
  int64_t first, count;
  Matrix<const T> k, v;
};

// One block of scores: adds to dq, dk and dv; the first block of a row overwrites its dq.
template <typename T, typename Kv>
void BackwardBlock(const AttentionBackwardArgs<T, Kv>& a, const Head& head, int64_t first, int64_t rows,
                   const KeyBlock<T>& keys, const T* delta, T* scratch) {
  const AttentionSize& size = a.size;
  const int64_t n = size.head_size, columns = keys.count;
  const Matrix<T> p{scratch, columns}, ds{scratch + ScoresOf(size), columns};
  const Matrix<const T> q = RowsOf(a.q, head, first), dout = RowsOf(a.dout, head, first);
  Gemm<T>(false, true, rows, columns, n, q, keys.k, 0, p);
  Gemm<T>(false, true, rows, columns, n, dout, keys.v, 0, ds);
  Loops<T>().backward(BlockOf(size, p.data, first, rows, keys.first, columns), a.lse.At(head.b, head.k, head.i, first),
                      a.lse.row, delta + first, ds.data);
  Gemm<T>(true, false, columns, n, rows, Const(p), dout, 1, KeysOf(a.dv, head, keys.first));
  Gemm<T>(true, false, columns, n, rows, Const(ds), q, 1, KeysOf(a.dk, head, keys.first));
  Gemm<T>(false, false, rows, n, columns, Const(ds), keys.k, keys.first == 0 ? 0 : 1, RowsOf(a.dq, head, first));
}

// All queries of one head over the keys from `key` on, up to a block of them.
template <typename T, typename Kv>
void BackwardKeys(const AttentionBackwardArgs<T, Kv>& a, const Head& head, int64_t key, const T* delta, T* scratch) {
  const AttentionSize& size = a.size;
  const int64_t count = std::min(kKeyBlock, size.keys - key);
  T* widened = scratch + 2 * ScoresOf(size) + DeltaOf(size);
  KeyBlock<T> keys{key, count, WidenedKeys<T>(a.k, head, key, count, size.head_size, widened),
                   WidenedKeys<T>(a.v, head, key, count, size.head_size, widened + WidenedOf<T, Kv>(size))};
  for (int64_t first = size.causal ? key : 0; first < size.queries; first += QueryBlock(size)) {
    const int64_t rows = std::min(QueryBlock(size), size.queries - first);
    if (size.causal) keys.count = std::min(count, first + rows - key);
    BackwardBlock(a, head, first, rows, keys, delta, scratch);
  }
}

// All that one kv head's queries and keys give: only this head's dk and dv are written, by one thread in a fixed order.
template <typename T, typename Kv>
void BackwardKvHead(const AttentionBackwardArgs<T, Kv>& a, int64_t b, int64_t k, T* scratch) {
  const AttentionSize& size = a.size;
  T* delta = scratch + 2 * ScoresOf(size);
  for (int64_t i = 0; i < size.group; ++i) {
    const Head head{b, k, i};
    const Matrix<const T> dout = RowsOf(a.dout, head, 0), out = RowsOf(a.out, head, 0);
    Loops<T>().delta(dout.data, dout.row, out.data, out.row, size.queries, size.head_size, delta);
    for (int64_t key = 0; key < size.keys; key += kKeyBlock) BackwardKeys(a, head, key, delta, scratch);
  }
}

// A block of scores, a block of keys.
template <typename T, typename Kv>
int64_t ThreadScratchForward(const AttentionSize& size) {
  return ScoresOf(size) + WidenedOf<T, Kv>(size);
}
// Two blocks of scores, each row's delta, a block of keys and one of values.
template <typename T, typename Kv>
int64_t ThreadScratchBackward(const AttentionSize& size) {
  return 2 * ScoresOf(size) + DeltaOf(size) + 2 * WidenedOf<T, Kv>(size);
}

}  // namespace

template <typename T, typename Kv>
int64_t AttentionForwardScratch(const AttentionSize& size) {
  return at::get_num_threads() * ThreadScratchForward<T, Kv>(size);
}

template <typename T, typename Kv>
int64_t AttentionBackwardScratch(const AttentionSize& size) {
  return at::get_num_threads() * ThreadScratchBackward<T, Kv>(size);
}

template <typename T, typename Kv>
void AttentionForward(const AttentionForwardArgs<T, Kv>& args) {
  const AttentionSize& size = args.size;
  const int64_t blocks = (size.queries + QueryBlock(size) - 1) / QueryBlock(size);
  at::parallel_for(0, size.batch * size.num_kv_heads * size.group * blocks, 1, [&](int64_t begin, int64_t end) {
    T* scratch = args.scratch + at::get_thread_num() * ThreadScratchForward<T, Kv>(size);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task / blocks, kv_head = head / size.group;
      ForwardQueries(args, {kv_head / size.num_kv_heads, kv_head % size.num_kv_heads, head % size.group},
                     task % blocks * QueryBlock(size), scratch);
    }
  });
}

template <typename T, typename Kv>
void AttentionBackward(const AttentionBackwardArgs<T, Kv>& args) {
  const AttentionSize& size = args.size;
  at::parallel_for(0, size.batch * size.num_kv_heads, 1, [&](int64_t begin, int64_t end) {
    T* scratch = args.scratch + at::get_thread_num() * ThreadScratchBackward<T, Kv>(size);
    for (int64_t task = begin; task < end; ++task) {
      BackwardKvHead(args, task / size.num_kv_heads, task % size.num_kv_heads, scratch);
    }
  });
}

#define STEMMA_ATTENTION(T, Kv)                                              \
  template int64_t AttentionForwardScratch<T, Kv>(const AttentionSize&);     \
  template int64_t AttentionBackwardScratch<T, Kv>(const AttentionSize&);    \
  template void AttentionForward<T, Kv>(const AttentionForwardArgs<T, Kv>&); \
  template void AttentionBackward<T, Kv>(const AttentionBackwardArgs<T, Kv>&);
STEMMA_ATTENTION(float, float)
STEMMA_ATTENTION(float, Bf16)
STEMMA_ATTENTION(double, double)
#undef STEMMA_ATTENTION

}  // namespace stemma::worker::kernels
