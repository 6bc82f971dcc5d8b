// How a call over a prefix is cut: its rows into chunks, so that its backward fills the device, and its keys between
// two libraries.
//
// Chunks. FA2's backward runs a thread block for each 128 keys and query head, which walks over all rows: a short
// prefix leaves multiprocessors idle. Chunks of rows along the batch dimension multiply the blocks; K and V are the
// same for each, by a stride of 0, and each chunk's dk and dv are summed in fp32 (AttentionKernels::add_parts). The
// forward needs none: its blocks are cut from the rows, and its kernel splits the keys where those are few.
//
// The other remedy, query heads of a kv head folded into the rows, needs no sum over query heads in bf16, but leaves
// K / H as many blocks, and queries lie as [T, H, E] here: it would copy q, dout and out.
//
// Keys. The faster library makes a plan for every exact count of keys and takes multiples of a number. The first keys,
// up to such a multiple, are its call, and the few behind them are one of FA2. Pure.
#pragma once

#include <cstdint>

namespace stemma::worker::cuda {

struct PrefixCall {
  int64_t rows = 0, keys = 0;
  int64_t heads = 0;  // query heads
};

// Returns how many chunks, at least 1.
int64_t ChunksOf(const PrefixCall& call, int64_t num_multiprocessors);

// Returns how many of the first `keys` the faster library is given where it takes `most` of them at the most: all, some
// or none. A call of its own for the keys behind costs the same whatever is before them (a merge, a sum of dq, FA2's
// own passes over the rows): by estimate, from an H100's rates, what 1,000 keys gain.
int64_t KeysOfFasterCall(int64_t keys, int64_t most);

}  // namespace stemma::worker::cuda
