// The head's row kernels of one instruction set, as a table of functions; private to worker/backend/cpu. Each function
// works on rows [begin, end) and is free of threads and of LibTorch.
#pragma once

#include "worker/backend/cpu/head_rows.h"

namespace stemma::worker::kernels {

template <typename T>
struct HeadRowsOf {
  void (*forward)(const HeadForwardArgs<T>&, int64_t begin, int64_t end);
  void (*backward)(const HeadBackwardArgs<T>&, int64_t begin, int64_t end);
};

struct HeadRowsTable {
  HeadRowsOf<float> f32;
  HeadRowsOf<double> f64;
};

namespace isa_baseline {
extern const HeadRowsTable kHeadRowsTable;
}
#if defined(STEMMA_HAVE_X86_LEVELS)
namespace isa_v3 {
extern const HeadRowsTable kHeadRowsTable;
}
namespace isa_v4 {
extern const HeadRowsTable kHeadRowsTable;
}
#endif

}  // namespace stemma::worker::kernels
