// The embedding, and which tokens' rows of it and of the head a rank has: all of them, or of several tensor-parallel
// ranks each its own. A token's row is looked up, and its gradient added, where the row is.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/backend/backend.h"
#include "worker/ops/tensor_parallel.h"

namespace stemma::worker {

// A rank's tokens are [begin, begin + rows of its weight).
struct VocabularyShard {
  const TensorParallel* tp = &WholeLayers();
  int64_t begin = 0;
};

// Tokens as indices into a rank's rows; -1: another rank's.
at::Tensor OwnTokens(const VocabularyShard& shard, const at::Tensor& tokens_T, int64_t own_rows);

// Returns this rank's rows (worker/ops/tensor_parallel.h) of the tokens' embeddings. tokens_T: int64, of the whole
// vocabulary.
at::Tensor EmbeddingForward(const VocabularyShard& shard, const at::Tensor& tokens_T, const at::Tensor& weight_VD);

// dweight_VD[token] += dx, of which this rank has its rows; deterministic: adds in row order.
void EmbeddingBackward(const Backend& backend, const VocabularyShard& shard, const at::Tensor& tokens_T,
                       const at::Tensor& dx_TD, const at::Tensor& dweight_VD);

}  // namespace stemma::worker
