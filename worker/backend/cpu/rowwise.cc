#include "worker/backend/cpu/rowwise.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "worker/backend/cpu/rowwise_table.h"

namespace stemma::worker::kernels {

namespace {

// A task is worth a thread from about this many elements on.
constexpr int64_t kElementsPerTask = 16384;
// Sums over rows: at most this many chunks, whatever the number of threads, so that the order of sums is fixed.
constexpr int64_t kMaxChunks = 64;
constexpr int64_t kMinRowsPerChunk = 32;

template <typename T>
const RowTable<T>& Rows() {
  if constexpr (std::is_same_v<T, float>) {
    return ChosenTable().f32;
  } else if constexpr (std::is_same_v<T, double>) {
    return ChosenTable().f64;
  } else {
    return ChosenTable().bf16;
  }
}

template <typename F>
void ForRows(int64_t rows, int64_t elements_per_row, const F& f) {
  const int64_t grain = std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, elements_per_row));
  at::parallel_for(0, rows, grain, f);
}

// f(begin, end, partial) for each chunk of rows with a zeroed partial of `width`; then sums += partials in chunk order.
template <typename A, typename F>
void ForRowsWithSum(int64_t rows, int64_t width, A* sums, const F& f) {
  const int64_t per_chunk = std::max(kMinRowsPerChunk, (rows + kMaxChunks - 1) / kMaxChunks);
  const int64_t num_chunks = (rows + per_chunk - 1) / per_chunk;
  std::vector<A> partials(num_chunks * width, A(0));
  at::parallel_for(0, num_chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      f(c * per_chunk, std::min(rows, (c + 1) * per_chunk), partials.data() + c * width);
    }
  });
  for (int64_t c = 0; c < num_chunks; ++c) {
    for (int64_t i = 0; i < width; ++i) sums[i] += partials[c * width + i];
  }
}

}  // namespace

std::vector<const KernelTable*> SupportedTables() {
  std::vector<const KernelTable*> tables;
#if defined(STEMMA_HAVE_X86_LEVELS)
  if (__builtin_cpu_supports("x86-64-v4")) tables.push_back(&isa_v4::kTable);
  if (__builtin_cpu_supports("x86-64-v3")) tables.push_back(&isa_v3::kTable);
#endif
  tables.push_back(&isa_baseline::kTable);
  return tables;
}

const KernelTable& ChosenTable() {
  static const KernelTable& chosen = *SupportedTables().front();
  return chosen;
}

template <typename T>
void RmsNormForward(const RmsNormForwardArgs<T>& args) {
  ForRows(args.rows, args.width, [&](int64_t begin, int64_t end) { Rows<T>().rms_norm_forward(args, begin, end); });
}

template <typename T>
void RmsNormBackward(const RmsNormBackwardArgs<T>& args) {
  ForRowsWithSum(args.rows, args.width, args.dweight_D, [&](int64_t begin, int64_t end, Acc<T>* partial) {
    Rows<T>().rms_norm_backward(args, begin, end, partial);
  });
}

template <typename T>
void SwigluForward(const SwigluForwardArgs<T>& args) {
  ForRows(args.rows, args.width, [&](int64_t begin, int64_t end) { Rows<T>().swiglu_forward(args, begin, end); });
}

template <typename T>
void SwigluBackward(const SwigluBackwardArgs<T>& args) {
  ForRows(args.rows, args.width, [&](int64_t begin, int64_t end) { Rows<T>().swiglu_backward(args, begin, end); });
}

template <typename T>
void QkvForward(const QkvForwardArgs<T>& args) {
  ForRows(args.rows, (args.num_heads + 2 * args.num_kv_heads) * args.head_size,
          [&](int64_t begin, int64_t end) { Rows<T>().qkv_forward(args, begin, end); });
}

template <typename T, typename G>
void QkvBackward(const QkvBackwardArgs<T, G>& args) {
  const auto run = [&](int64_t begin, int64_t end, Acc<T>* partial) {
    if constexpr (std::is_same_v<T, G>) {
      Rows<T>().qkv_backward(args, begin, end, partial);
    } else {
      Rows<T>().qkv_backward_acc(args, begin, end, partial);
    }
  };
  const int64_t size = args.head_size;
  if (args.k_weight_E == nullptr) {
    ForRows(args.rows, (args.num_heads + 2 * args.num_kv_heads) * size,
            [&](int64_t begin, int64_t end) { run(begin, end, nullptr); });
    return;
  }
  std::vector<Acc<T>> sums(2 * size, Acc<T>(0));
  ForRowsWithSum(args.rows, 2 * size, sums.data(), run);
  for (int64_t i = 0; i < size; ++i) {
    if (args.dq_weight_E != nullptr) args.dq_weight_E[i] += sums[i];
    args.dk_weight_E[i] += sums[size + i];
  }
}

template <typename T>
void Merge(const MergeArgs<T>& args) {
  ForRows(args.rows, args.num_kv_heads * args.group * args.head_size,
          [&](int64_t begin, int64_t end) { Rows<T>().merge(args, begin, end); });
}

template <typename T>
void CombineHeads(const CombineHeadsArgs<T>& args) {
  ForRows(args.rows, args.num_kv_heads * args.group * args.head_size,
          [&](int64_t begin, int64_t end) { Rows<T>().combine_heads(args, begin, end); });
}

template <typename T>
void EmbeddingBackward(const EmbeddingBackwardArgs<T>& args) {
  ForRows(args.width, args.rows, [&](int64_t begin, int64_t end) { Rows<T>().embedding_backward(args, begin, end); });
}

#define STEMMA_INSTANTIATE(T)                                      \
  template void RmsNormForward<T>(const RmsNormForwardArgs<T>&);   \
  template void RmsNormBackward<T>(const RmsNormBackwardArgs<T>&); \
  template void SwigluForward<T>(const SwigluForwardArgs<T>&);     \
  template void SwigluBackward<T>(const SwigluBackwardArgs<T>&);   \
  template void QkvForward<T>(const QkvForwardArgs<T>&);           \
  template void QkvBackward<T, T>(const QkvBackwardArgs<T, T>&);   \
  template void Merge<T>(const MergeArgs<T>&);                     \
  template void CombineHeads<T>(const CombineHeadsArgs<T>&);       \
  template void EmbeddingBackward<T>(const EmbeddingBackwardArgs<T>&)
STEMMA_INSTANTIATE(float);
STEMMA_INSTANTIATE(double);
STEMMA_INSTANTIATE(Bf16);
template void QkvBackward<Bf16, float>(const QkvBackwardArgs<Bf16, float>&);
#undef STEMMA_INSTANTIATE

}  // namespace stemma::worker::kernels
