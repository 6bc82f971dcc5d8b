// Into how many chunks the rows of a call over a prefix are cut, so that its backward fills the device.
//
// FA2's backward runs a thread block for each 128 keys and query head, which walks over all rows: a short prefix leaves
// multiprocessors idle. Chunks of rows along the batch dimension multiply the blocks; K and V are the same for each, by
// a stride of 0, and each chunk's dk and dv are summed in fp32 (AttentionKernels::add_parts). The forward needs none:
// its blocks are cut from the rows, and its kernel splits the keys where those are few.
//
// The other remedy, query heads of a kv head folded into the rows, needs no sum over query heads in bf16, but leaves
// K / H as many blocks, and queries lie as [T, H, E] here: it would copy q, dout and out. Pure.
#pragma once

#include <cstdint>

namespace stemma::worker::cuda {

struct PrefixCall {
  int64_t rows = 0, keys = 0;
  int64_t heads = 0;  // query heads
};

// Returns how many chunks, at least 1.
int64_t ChunksOf(const PrefixCall& call, int64_t num_multiprocessors);

}  // namespace stemma::worker::cuda
