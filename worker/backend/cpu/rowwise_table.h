// The row kernels of one instruction set, as a table of functions; private to worker/backend/cpu.
//
// Each function works on rows [begin, end) of its arguments (EmbeddingBackward: on columns) and is free of threads and
// of LibTorch. Sums over rows are added to `partial`, which the caller zeroes and reduces.
#pragma once

#include <vector>

#include "worker/backend/cpu/rowwise.h"

namespace stemma::worker::kernels {

template <typename T>
struct RowTable {
  void (*rms_norm_forward)(const RmsNormForwardArgs<T>&, int64_t begin, int64_t end);
  void (*rms_norm_backward)(const RmsNormBackwardArgs<T>&, int64_t begin, int64_t end, Acc<T>* partial_D);
  void (*swiglu_forward)(const SwigluForwardArgs<T>&, int64_t begin, int64_t end);
  void (*swiglu_backward)(const SwigluBackwardArgs<T>&, int64_t begin, int64_t end);
  void (*qkv_forward)(const QkvForwardArgs<T>&, int64_t begin, int64_t end);
  // partial: [2, E], q then k; null without QK-norm.
  void (*qkv_backward)(const QkvBackwardArgs<T, T>&, int64_t begin, int64_t end, Acc<T>* partial_2E);
  void (*qkv_backward_acc)(const QkvBackwardArgs<T, Acc<T>>&, int64_t begin, int64_t end, Acc<T>* partial_2E);
  void (*merge)(const MergeArgs<T>&, int64_t begin, int64_t end);
  void (*combine_heads)(const CombineHeadsArgs<T>&, int64_t begin, int64_t end);
  void (*embedding_backward)(const EmbeddingBackwardArgs<T>&, int64_t begin, int64_t end);
};

struct KernelTable {
  const char* name;
  RowTable<float> f32;
  RowTable<double> f64;
  RowTable<Bf16> bf16;
};

namespace isa_baseline {
extern const KernelTable kTable;
}
#if defined(STEMMA_HAVE_X86_LEVELS)
namespace isa_v3 {
extern const KernelTable kTable;
}
namespace isa_v4 {
extern const KernelTable kTable;
}
#endif

// The tables that this machine can run, best first.
std::vector<const KernelTable*> SupportedTables();

// The best of them; chosen once.
const KernelTable& ChosenTable();

}  // namespace stemma::worker::kernels
