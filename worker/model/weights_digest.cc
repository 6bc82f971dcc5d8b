#include "worker/model/weights_digest.h"

#include <ATen/ops/zeros.h>
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

// How many ranks hold the same box of the tensor, this one included.
int64_t HoldersOf(const HfTensor& tensor, const ModelShard& shard) {
  int64_t holders = 1;
  if (tensor.partial_over_tp) holders *= shard.place.tp_size;
  if (tensor.partial_over_kv_replicas) holders *= shard.kv_replicas();
  if (tensor.partial_over_first_and_last_stage) holders *= 2;
  return holders;
}

enum Column { kSum, kElements, kUnlike, kColumns };

// Returns [tensors, kColumns]: of each of the model's tensors, in order, the sum of this rank's words, how many these
// are, and what over all holders of a box adds up to 0 where they hold the same.
at::Tensor OwnNumbers(const Weights& weights, const Kernels& kernels, const std::vector<TensorSpec>& tensors) {
  const auto count = static_cast<int64_t>(tensors.size());
  at::Tensor sums;  // where the weights are
  std::vector<const HfTensor*> held(tensors.size());
  std::vector<int64_t> elements(tensors.size());
  auto own = weights.hf_tensors.begin();  // in the model's order, too
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (own == weights.hf_tensors.end() || own->name != tensors[i].name) continue;
    const HfTensor& tensor = *own++;
    const OwnElements mine = OwnElementsOf(weights, tensor);
    if (!mine.values.defined()) continue;
    if (!sums.defined()) sums = at::zeros({count}, mine.values.options().dtype(at::kLong));
    kernels.word_sum({.values = mine.values,
                      .first = mine.first,
                      .columns = tensor.box.columns(),
                      .row_begin = tensor.box.row_begin,
                      .column_begin = tensor.box.column_begin,
                      .sum = sums[static_cast<int64_t>(i)]});
    held[i] = &tensor;
    elements[i] = mine.values.numel();
  }
  CHECK(own == weights.hf_tensors.end()) << own->name << " is none of the model's tensors";
  at::Tensor numbers = at::zeros({count, kColumns}, at::kLong);
  if (!sums.defined()) return numbers;
  const at::Tensor on_host = sums.cpu();  // the one wait for the device
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (held[i] == nullptr) continue;
    const auto sum = static_cast<uint64_t>(on_host.const_data_ptr<int64_t>()[i]);
    int64_t* const row = numbers.mutable_data_ptr<int64_t>() + i * kColumns;
    const uint64_t others = static_cast<uint64_t>(HoldersOf(*held[i], weights.shard)) - 1;
    if (held[i]->counts_in_norm) {  // of the holders of a box one tells it
      row[kSum] = static_cast<int64_t>(sum);
      row[kElements] = elements[i];
      row[kUnlike] = static_cast<int64_t>(sum * others);
    } else {
      row[kUnlike] = static_cast<int64_t>(0 - sum);
    }
  }
  return numbers;
}

}  // namespace

absl::StatusOr<std::string> MeshDigest(const Weights& weights, const Kernels& kernels, const DigestRanks& ranks) {
  const std::vector<TensorSpec> tensors = ModelTensors(weights.shard.config);
  at::Tensor numbers = OwnNumbers(weights, kernels, tensors);
  Communicator* const shards = weights.is_sharded() ? &ranks.data : nullptr;
  for (Communicator* const axis : {&ranks.tp, &ranks.pp, shards}) {
    if (axis != nullptr && axis->size() > 1) RETURN_IF_ERROR(axis->AllReduceSum("weights_digest", numbers));
  }
  Sha256 digest;
  digest.UpdateInteger(static_cast<uint64_t>(weights.run_dtype));
  const auto* row = numbers.const_data_ptr<int64_t>();
  bool alike = true;
  for (const TensorSpec& tensor : tensors) {
    digest.UpdateInteger(tensor.name.size());
    digest.Update(tensor.name);
    digest.UpdateInteger(static_cast<uint64_t>(row[kSum]));
    digest.UpdateInteger(static_cast<uint64_t>(row[kElements]));
    if (row[kUnlike] != 0) alike = false;
    row += kColumns;
  }
  if (!alike) {
    for (const Communicator* const axis : {&ranks.tp, &ranks.pp}) {
      digest.UpdateInteger(static_cast<uint64_t>(axis->rank()));
    }
  }
  return WeightsDigestText(digest.FinishHex());
}

}  // namespace stemma::worker
