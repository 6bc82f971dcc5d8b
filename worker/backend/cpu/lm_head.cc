#include "worker/backend/cpu/lm_head.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <type_traits>

#include "worker/backend/cpu/lm_head_table.h"
#include "worker/backend/cpu/rowwise_table.h"

namespace stemma::worker::kernels {
namespace {

// A task is worth a thread from about this many elements on.
constexpr int64_t kLogitsPerTask = 16384;

// The same instruction set as the other row kernels.
const LmHeadTable& ChosenLmHead() {
#if defined(STEMMA_HAVE_X86_LEVELS)
  if (&ChosenTable() == &isa_v4::kTable) return isa_v4::kLmHeadTable;
  if (&ChosenTable() == &isa_v3::kTable) return isa_v3::kLmHeadTable;
#endif
  return isa_baseline::kLmHeadTable;
}

template <typename T>
const LmHeadLoops<T>& HeadTable() {
  if constexpr (std::is_same_v<T, float>) {
    return ChosenLmHead().f32;
  } else {
    return ChosenLmHead().f64;
  }
}

int64_t Grain(int64_t vocab) { return std::max<int64_t>(1, kLogitsPerTask / std::max<int64_t>(1, vocab)); }

}  // namespace

template <typename T>
void HeadForward(const HeadForwardArgs<T>& args) {
  at::parallel_for(0, args.rows, Grain(args.vocab),
                   [&](int64_t begin, int64_t end) { HeadTable<T>().forward(args, begin, end); });
}

template <typename T>
void HeadBackward(const HeadBackwardArgs<T>& args) {
  at::parallel_for(0, args.rows, Grain(args.vocab),
                   [&](int64_t begin, int64_t end) { HeadTable<T>().backward(args, begin, end); });
}

template void HeadForward<float>(const HeadForwardArgs<float>&);
template void HeadForward<double>(const HeadForwardArgs<double>&);
template void HeadBackward<float>(const HeadBackwardArgs<float>&);
template void HeadBackward<double>(const HeadBackwardArgs<double>&);

}  // namespace stemma::worker::kernels
