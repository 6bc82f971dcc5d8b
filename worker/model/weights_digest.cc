#include "worker/model/weights_digest.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <glog/logging.h>

#include <algorithm>
#include <vector>

#include "common/base/digest.h"
#include "common/base/status_macros.h"
#include "common/base/weights_digest_text.h"
#include "common/model/model_tensors.h"

namespace stemma::worker {
namespace {

// The elements of a tensor that this rank adds to the digest: all of its box, or of sharded parameters its own.
struct OwnElements {
  at::Tensor values;
  int64_t first = 0;  // in the box
};

OwnElements OwnElementsOf(const Weights& weights, const HfTensor& tensor) {
  const Parameter& p = weights.at(tensor.parameter);
  const int64_t first = tensor.row_begin * tensor.box.columns(), elements = tensor.box.rows() * tensor.box.columns();
  int64_t begin = 0, end = elements;
  if (p.is_sharded()) {
    begin = std::clamp<int64_t>(p.state_begin - first, 0, elements);
    end = std::clamp<int64_t>(p.state_begin + p.weight_shard.numel() - first, begin, elements);
  }
  return {begin == end ? at::Tensor() : p.WeightElements(first + begin, end - begin), begin};
}

// Returns [tensors, 2]: of each of the model's tensors, in order, the sum of this rank's words, and how many these are.
at::Tensor OwnSums(const Weights& weights, const Kernels& kernels, const std::vector<TensorSpec>& tensors) {
  const auto count = static_cast<int64_t>(tensors.size());
  const at::Tensor elements = at::zeros({count}, at::kLong);
  at::Tensor sums;                        // where the weights are
  auto own = weights.hf_tensors.begin();  // in the model's order, too
  for (int64_t i = 0; i < count; ++i) {
    if (own == weights.hf_tensors.end() || own->name != tensors[static_cast<size_t>(i)].name) continue;
    const HfTensor& tensor = *own++;
    if (!tensor.counts_in_norm) continue;  // another rank has the same box
    const OwnElements mine = OwnElementsOf(weights, tensor);
    if (!mine.values.defined()) continue;
    if (!sums.defined()) sums = at::zeros({count}, mine.values.options().dtype(at::kLong));
    kernels.word_sum({.values = mine.values,
                      .first = mine.first,
                      .columns = tensor.box.columns(),
                      .row_begin = tensor.box.row_begin,
                      .column_begin = tensor.box.column_begin,
                      .sum = sums[i]});
    elements[i] = mine.values.numel();
  }
  CHECK(own == weights.hf_tensors.end()) << own->name << " is none of the model's tensors";
  const at::Tensor on_host = sums.defined() ? sums.cpu() : at::zeros_like(elements);  // the one wait for the device
  return at::stack({on_host, elements}, 1);
}

}  // namespace

absl::StatusOr<std::string> MeshDigest(const Weights& weights, const Kernels& kernels, const DigestRanks& ranks) {
  const std::vector<TensorSpec> tensors = ModelTensors(weights.shard.config);
  at::Tensor numbers = OwnSums(weights, kernels, tensors);
  Communicator* const shards = weights.is_sharded() ? &ranks.data : nullptr;
  for (Communicator* const axis : {&ranks.tp, &ranks.pp, shards}) {
    if (axis != nullptr && axis->size() > 1) RETURN_IF_ERROR(axis->AllReduceSum("weights_digest", numbers));
  }
  Sha256 digest;
  digest.UpdateInteger(static_cast<uint64_t>(weights.run_dtype));
  const auto* number = numbers.const_data_ptr<int64_t>();
  for (const TensorSpec& tensor : tensors) {
    digest.UpdateInteger(tensor.name.size());
    digest.Update(tensor.name);
    digest.UpdateInteger(static_cast<uint64_t>(*number++));
    digest.UpdateInteger(static_cast<uint64_t>(*number++));
  }
  return WeightsDigestText(digest.FinishHex());
}

}  // namespace stemma::worker
