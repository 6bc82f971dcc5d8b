// Where a rank's elements of a Hugging Face tensor lie in a safetensors file. Loading, checkpoints and exports all
// follow from it: what is read into a rank's parameters, and which bytes of a file the rank writes. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/byte_runs.h"
#include "common/model/safetensors.h"
#include "worker/model/weights.h"
#include "worker/optim/ranges.h"

namespace stemma::worker {

// Elements [begin, begin + count) of a parameter, and the bytes of a file that hold them, in the same order.
struct FilePiece {
  int parameter = 0;
  int64_t begin = 0, count = 0;
  ByteRuns bytes;
};

// Returns what `owned` has of a tensor, ascending: nothing, or one piece; where the box is cut by columns, and the
// range begins or ends within a row, at most three. `entry`: the whole tensor in the file, of any dtype. `owned`: at
// most one range of a parameter, as OptimizerShards::owned.
std::vector<FilePiece> FilePieces(const HfTensor& tensor, const safetensors::TensorEntry& entry,
                                  const ParameterRanges& owned);

}  // namespace stemma::worker
