#include "worker/backend/cpu/attention.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <type_traits>

#include "common/base/round_up.h"
#include "common/cost/kernel_blocks.h"
#include "worker/backend/cpu/attention_table.h"
#include "worker/backend/cpu/rowwise_table.h"

namespace stemma::worker::kernels {
namespace {

constexpr int64_t kQueryBlock = kAttentionQueryBlock, kKeyBlock = kAttentionKeyBlock;
static_assert(kKeyBlock % kQueryBlock == 0,
              "a block of queries never begins before the keys of the block on its diagonal");

AttentionBlocks BlocksOf(const AttentionSize& size) { return {size.group, size.queries, size.keys, size.head_size}; }

template <typename T>
const AttentionLoopsOf<T>& LoopsOf(const AttentionLoops& loops) {
  if constexpr (std::is_same_v<T, float>) {
    return loops.f32;
  } else {
    return loops.f64;
  }
}

// One query head: the i-th of kv head k.
struct Head {
  int64_t b, k, i;
};

// Query heads [begin, end) of one kv head, at most kAttentionHeads: what read packed keys and values in turn.
struct Heads {
  int64_t b, k, begin, end;
  int64_t count() const { return end - begin; }
  Head At(int64_t i) const { return {b, k, begin + i}; }
};

// The query heads of a kv head are computed in so many parts.
int64_t GroupParts(const AttentionSize& size) { return DivideUp(size.group, kAttentionHeads); }

Heads HeadsAt(const AttentionSize& size, int64_t b, int64_t k, int64_t part) {
  return {b, k, part * kAttentionHeads, std::min((part + 1) * kAttentionHeads, size.group)};
}

template <typename T>
StridedRows<T> RowsOf(const AttentionRows<T>& x, const Head& head, int64_t row) {
  return {x.At(head.b, head.k, head.i, row), x.row};
}

template <typename T>
StridedRows<T> KeysOf(const AttentionRows<T>& x, const Heads& heads, int64_t row) {
  return {x.At(heads.b, heads.k, 0, row), x.row};
}

// Packs `count` keys or values.
template <typename T, typename Kv>
void PackKeys(const AttentionLoopsOf<T>& loops, StridedRows<const Kv> keys, int64_t count, int64_t head_size,
              T* packed) {
  if constexpr (std::is_same_v<T, Kv>) {
    loops.pack(keys, count, head_size, packed);
  } else {
    loops.pack_bf16(keys, count, head_size, packed);
  }
}

// A block of one head's queries.
struct Queries {
  int64_t first, count;
  int64_t keys;  // that its last row sees
};

Queries QueriesFrom(const AttentionSize& size, int64_t first) {
  const int64_t count = std::min(kQueryBlock, size.queries - first);
  return {first, count, size.causal ? first + count : size.keys};
}

// The scores of `queries` and keys [key, key + count).
template <typename T>
ScoreBlock<T> BlockOf(const AttentionSize& size, const Queries& queries, int64_t key, int64_t count, T* scores) {
  return {.scores = scores,
          .queries = queries.count,
          .keys = count,
          .stride = BlocksOf(size).score_stride(),
          .diagonal = size.causal && key + count > queries.first,
          .first_visible = queries.first - key + 1,
          .scale = static_cast<T>(size.scale)};
}

// Hands out pieces of a thread's scratch.
template <typename T>
class Pieces {
 public:
  explicit Pieces(T* scratch) : next_(scratch) {}
  T* Take(int64_t elements) {
    T* piece = next_;
    next_ += elements;
    return piece;
  }

 private:
  T* next_;
};

template <typename T>
struct ForwardScratch {
  struct OfHead {
    T* q;
    T max[kQueryBlock], sum[kQueryBlock];
  };
  T *scores, *k, *v;
  OfHead heads[kAttentionHeads];

  ForwardScratch(const AttentionBlocks& blocks, Pieces<T> pieces)
      : scores(pieces.Take(blocks.scores())),
        k(pieces.Take(blocks.packed_keys())),
        v(pieces.Take(blocks.packed_keys())) {
    for (int64_t i = 0; i < blocks.heads; ++i) heads[i].q = pieces.Take(blocks.packed_queries());
  }
};

template <typename T, typename Kv>
void ForwardQueries(const AttentionForwardArgs<T, Kv>& a, const Heads& heads, int64_t first, T* scratch) {
  const AttentionSize& size = a.size;
  const AttentionLoopsOf<T>& loops = LoopsOf<T>(*a.loops);
  const Queries queries = QueriesFrom(size, first);
  const int64_t n = size.head_size;
  ForwardScratch<T> s(BlocksOf(size), Pieces<T>(scratch));
  for (int64_t i = 0; i < heads.count(); ++i) {
    loops.pack_transposed(RowsOf(a.q, heads.At(i), first), queries.count, n, s.heads[i].q);
  }
  for (int64_t key = 0; key < queries.keys; key += kKeyBlock) {
    const int64_t count = std::min(kKeyBlock, queries.keys - key);
    const ScoreBlock<T> block = BlockOf(size, queries, key, count, s.scores);
    PackKeys(loops, KeysOf(a.k, heads, key), count, n, s.k);
    PackKeys(loops, KeysOf(a.v, heads, key), count, n, s.v);
    for (int64_t i = 0; i < heads.count(); ++i) {
      auto& of_head = s.heads[i];
      const StridedRows<T> out = RowsOf(a.out, heads.At(i), first);
      loops.softmax(block, s.k, of_head.q, {key == 0, of_head.max, of_head.sum, out, n});
      loops.sum_over_keys(block, s.v, n, key > 0, out);
    }
  }
  for (int64_t i = 0; i < heads.count(); ++i) {
    auto& of_head = s.heads[i];
    loops.normalize({false, of_head.max, of_head.sum, RowsOf(a.out, heads.At(i), first), n}, static_cast<T>(size.scale),
                    queries.count, RowsOf(a.lse, heads.At(i), first));
  }
}

template <typename T>
struct BackwardScratch {
  struct OfHead {
    T *q, *q_transposed, *dout, *dout_transposed;
    T lse[kQueryBlock], delta[kQueryBlock];
  };
  T *p, *ds, *k, *v;
  OfHead heads[kAttentionHeads];

  BackwardScratch(const AttentionBlocks& blocks, Pieces<T> pieces)
      : p(pieces.Take(blocks.scores())),
        ds(pieces.Take(blocks.scores())),
        k(pieces.Take(blocks.packed_keys())),
        v(pieces.Take(blocks.packed_keys())) {
    for (int64_t i = 0; i < blocks.heads; ++i) {
      for (T** piece : {&heads[i].q, &heads[i].q_transposed, &heads[i].dout, &heads[i].dout_transposed}) {
        *piece = pieces.Take(blocks.packed_queries());
      }
    }
  }
};

// Packs what the backward reads of one head's queries.
template <typename T, typename Kv>
void PackQueries(const AttentionBackwardArgs<T, Kv>& a, const Head& head, const Queries& queries,
                 typename BackwardScratch<T>::OfHead& s) {
  const AttentionLoopsOf<T>& loops = LoopsOf<T>(*a.loops);
  const int64_t first = queries.first, n = a.size.head_size;
  const StridedRows<const T> q = RowsOf(a.q, head, first), dout = RowsOf(a.dout, head, first);
  std::fill_n(s.lse, kQueryBlock, T(0));  // what follows the queries is computed on too, and not stored
  std::fill_n(s.delta, kQueryBlock, T(0));
  for (int64_t r = 0; r < queries.count; ++r) s.lse[r] = *a.lse.At(head.b, head.k, head.i, first + r);
  loops.delta(dout, RowsOf(a.out, head, first), queries.count, n, s.delta);
  loops.pack(q, queries.count, n, s.q);
  loops.pack(dout, queries.count, n, s.dout);
  loops.pack_transposed(q, queries.count, n, s.q_transposed);
  loops.pack_transposed(dout, queries.count, n, s.dout_transposed);
}

// Adds what keys from `key` on give to each head's dq and to dk and dv; the first block of keys overwrites dq.
template <typename T, typename Kv>
void BackwardKeys(const AttentionBackwardArgs<T, Kv>& a, const Heads& heads, const Queries& queries, int64_t key,
                  const BackwardScratch<T>& s) {
  const AttentionSize& size = a.size;
  const AttentionLoopsOf<T>& loops = LoopsOf<T>(*a.loops);
  const int64_t n = size.head_size, count = std::min(kKeyBlock, queries.keys - key);
  const ScoreBlock<T> p = BlockOf(size, queries, key, count, s.p);
  ScoreBlock<T> ds = p;
  ds.scores = s.ds;
  PackKeys(loops, KeysOf(a.k, heads, key), count, n, s.k);
  PackKeys(loops, KeysOf(a.v, heads, key), count, n, s.v);
  for (int64_t i = 0; i < heads.count(); ++i) {
    const auto& of_head = s.heads[i];
    loops.backward(p, s.k, s.v, {of_head.q_transposed, of_head.dout_transposed, of_head.lse, of_head.delta, s.ds, n});
    loops.sum_over_queries(p, of_head.dout, n, KeysOf(a.dv, heads, key));
    loops.sum_over_queries(ds, of_head.q, n, KeysOf(a.dk, heads, key));
    loops.sum_over_keys(ds, s.k, n, key > 0, RowsOf(a.dq, heads.At(i), queries.first));
  }
}

template <typename T, typename Kv>
void BackwardQueries(const AttentionBackwardArgs<T, Kv>& a, const Heads& heads, int64_t first, BackwardScratch<T>& s) {
  const Queries queries = QueriesFrom(a.size, first);
  for (int64_t i = 0; i < heads.count(); ++i) PackQueries(a, heads.At(i), queries, s.heads[i]);
  for (int64_t key = 0; key < queries.keys; key += kKeyBlock) BackwardKeys(a, heads, queries, key, s);
}

// All that one kv head's queries and keys give: only this head's dk and dv are written, by one thread in a fixed order.
template <typename T, typename Kv>
void BackwardKvHead(const AttentionBackwardArgs<T, Kv>& a, int64_t b, int64_t k, T* scratch) {
  BackwardScratch<T> pieces(BlocksOf(a.size), Pieces<T>(scratch));
  for (int64_t part = 0; part < GroupParts(a.size); ++part) {
    for (int64_t first = 0; first < a.size.queries; first += kQueryBlock) {
      BackwardQueries(a, HeadsAt(a.size, b, k, part), first, pieces);
    }
  }
}

}  // namespace

std::vector<const AttentionLoops*> SupportedAttentionLoops() {
  std::vector<const AttentionLoops*> supported;
  for (const KernelTable* table : SupportedTables()) {
#if defined(STEMMA_HAVE_X86_LEVELS)
    if (table == &isa_v4::kTable) supported.push_back(&isa_v4::kAttentionLoops);
    if (table == &isa_v3::kTable) supported.push_back(&isa_v3::kAttentionLoops);
#endif
    if (table == &isa_baseline::kTable) supported.push_back(&isa_baseline::kAttentionLoops);
  }
  return supported;
}

const AttentionLoops& ChosenAttentionLoops() {
  static const AttentionLoops& chosen = *SupportedAttentionLoops().front();
  return chosen;
}

int64_t AttentionForwardScratch(const AttentionSize& size) { return at::get_num_threads() * BlocksOf(size).forward(); }

int64_t AttentionBackwardScratch(const AttentionSize& size) {
  return at::get_num_threads() * BlocksOf(size).backward();
}

template <typename T, typename Kv>
void AttentionForward(const AttentionForwardArgs<T, Kv>& args) {
  const AttentionSize& size = args.size;
  const int64_t blocks = DivideUp(size.queries, kQueryBlock), parts = GroupParts(size);
  at::parallel_for(0, size.batch * size.num_kv_heads * parts * blocks, 1, [&](int64_t begin, int64_t end) {
    T* scratch = args.scratch + at::get_thread_num() * BlocksOf(size).forward();
    for (int64_t task = begin; task < end; ++task) {
      const int64_t part = task / blocks, kv_head = part / parts;
      ForwardQueries(args, HeadsAt(size, kv_head / size.num_kv_heads, kv_head % size.num_kv_heads, part % parts),
                     task % blocks * kQueryBlock, scratch);
    }
  });
}

template <typename T, typename Kv>
void AttentionBackward(const AttentionBackwardArgs<T, Kv>& args) {
  const AttentionSize& size = args.size;
  at::parallel_for(0, size.batch * size.num_kv_heads, 1, [&](int64_t begin, int64_t end) {
    T* scratch = args.scratch + at::get_thread_num() * BlocksOf(size).backward();
    for (int64_t task = begin; task < end; ++task) {
      BackwardKvHead(args, task / size.num_kv_heads, task % size.num_kv_heads, scratch);
    }
  });
}

#define STEMMA_ATTENTION(T, Kv)                                              \
  template void AttentionForward<T, Kv>(const AttentionForwardArgs<T, Kv>&); \
  template void AttentionBackward<T, Kv>(const AttentionBackwardArgs<T, Kv>&);
STEMMA_ATTENTION(float, float)
STEMMA_ATTENTION(float, Bf16)
STEMMA_ATTENTION(double, double)
#undef STEMMA_ATTENTION

}  // namespace stemma::worker::kernels
