#include "worker/ops/vocabulary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/logical_or.h>
#include <ATen/record_function.h>
#include <glog/logging.h>

namespace stemma::worker {
namespace {

// Zeros in the rows of tokens that another rank has.
at::Tensor WithoutOthers(const at::Tensor& rows_TD, const at::Tensor& own_T) {
  return rows_TD.masked_fill((own_T < 0).unsqueeze(1), 0);
}

}  // namespace

at::Tensor OwnTokens(const VocabularyShard& shard, const at::Tensor& tokens_T, int64_t own_rows) {
  if (shard.tp->size() == 1) return tokens_T;
  const at::Tensor own_T = tokens_T - shard.begin;
  return own_T.masked_fill(at::logical_or(own_T < 0, own_T >= own_rows), -1);
}

at::Tensor EmbeddingForward(const VocabularyShard& shard, const at::Tensor& tokens_T, const at::Tensor& weight_VD) {
  RECORD_USER_SCOPE("EmbeddingForward");
  if (shard.tp->size() == 1) return at::index_select(weight_VD, 0, tokens_T);
  const at::Tensor own_T = OwnTokens(shard, tokens_T, weight_VD.size(0));
  return shard.tp->SumRows(WithoutOthers(at::index_select(weight_VD, 0, own_T.clamp_min(0)), own_T));
}

void EmbeddingBackward(const Backend& backend, const VocabularyShard& shard, const at::Tensor& tokens_T,
                       const at::Tensor& dx_TD, const at::Tensor& dweight_VD) {
  RECORD_USER_SCOPE("EmbeddingBackward");
  CHECK_EQ(shard.tp->LocalRows(tokens_T.numel()), dx_TD.size(0));
  CHECK_EQ(dx_TD.size(1), dweight_VD.size(1));
  CHECK(tokens_T.scalar_type() == at::kLong && tokens_T.is_contiguous());
  const at::Tensor all_TD = shard.tp->GatherRows(dx_TD, tokens_T.numel());
  const at::Tensor own_T = OwnTokens(shard, tokens_T, dweight_VD.size(0));
  backend.kernels.embedding_backward({.tokens_T = own_T, .dx_TD = all_TD, .dweight_VD = dweight_VD});
}

}  // namespace stemma::worker
