// The LM head's row kernels of one instruction set, as a table of functions; private to worker/backend/cpu. Each
// function works on rows [begin, end) and is free of threads and of LibTorch.
#pragma once

#include "worker/backend/cpu/lm_head.h"

namespace stemma::worker::kernels {

template <typename T>
struct LmHeadLoops {
  void (*forward)(const HeadForwardArgs<T>&, int64_t begin, int64_t end);
  void (*backward)(const HeadBackwardArgs<T>&, int64_t begin, int64_t end);
};

struct LmHeadTable {
  LmHeadLoops<float> f32;
  LmHeadLoops<double> f64;
};

namespace isa_baseline {
extern const LmHeadTable kLmHeadTable;
}
#if defined(STEMMA_HAVE_X86_LEVELS)
namespace isa_v3 {
extern const LmHeadTable kLmHeadTable;
}
namespace isa_v4 {
extern const LmHeadTable kLmHeadTable;
}
#endif

}  // namespace stemma::worker::kernels
