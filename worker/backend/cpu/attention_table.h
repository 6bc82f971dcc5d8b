// The loops over a block of scores of one instruction set, as a table of functions; private to worker/backend/cpu. Each
// is free of threads and of LibTorch.
#pragma once

#include <cstdint>

namespace stemma::worker::kernels {

// A block of scores q·k, rows by columns, adjacent rows. Row r sees its first `first_visible + r` columns where the
// block is on the diagonal, all of them elsewhere.
template <typename T>
struct ScoreBlock {
  T* scores;
  int64_t rows, columns;
  bool diagonal;
  int64_t first_visible;
  T scale;
};

// A row's running maximum of the scores so far, and Σ e^(scale (score - max)).
template <typename T>
struct RowSoftmax {
  T max, sum;
};

template <typename T>
struct AttentionLoopsOf {
  // scores become e^(scale (score - max)), 0 where not visible; rows of `out` are rescaled to the new maximum, unless
  // the block is the row's first.
  void (*softmax)(const ScoreBlock<T>& block, bool first, RowSoftmax<T>* softmax, T* out, int64_t out_row,
                  int64_t head_size);
  // out /= sum; lse = scale · max + log sum.
  void (*normalize)(const RowSoftmax<T>* softmax, T scale, int64_t rows, int64_t head_size, T* out, int64_t out_row,
                    T* lse, int64_t lse_row);
  // scores become p = e^(scale · score - lse); dp, holding dO·v, becomes scale · p (dp - delta); 0 where not visible.
  void (*backward)(const ScoreBlock<T>& block, const T* lse, int64_t lse_row, const T* delta, T* dp);
  // delta_r = Σ dout out.
  void (*delta)(const T* dout, int64_t dout_row, const T* out, int64_t out_row, int64_t rows, int64_t head_size,
                T* delta);
};

struct AttentionLoops {
  AttentionLoopsOf<float> f32;
  AttentionLoopsOf<double> f64;
};

namespace isa_baseline {
extern const AttentionLoops kAttentionLoops;
}
#if defined(STEMMA_HAVE_X86_LEVELS)
namespace isa_v3 {
extern const AttentionLoops kAttentionLoops;
}
namespace isa_v4 {
extern const AttentionLoops kAttentionLoops;
}
#endif

}  // namespace stemma::worker::kernels
