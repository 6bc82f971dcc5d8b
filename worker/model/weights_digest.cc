#include "worker/model/weights_digest.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <glog/logging.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/base/digest.h"
#include "common/base/round_up.h"
#include "common/base/split_mix.h"
#include "common/base/status_macros.h"
#include "common/base/weights_digest_text.h"
#include "common/model/model_tensors.h"
#include "worker/parallel/local_communicator.h"

namespace stemma::worker {
namespace {

// Rows and columns have factors of their own, all odd.
constexpr uint64_t kRowSeed = 0x2545f4914f6cdd1d, kColumnSeed = 0x9e3779b97f4a7c15;
uint64_t Factor(uint64_t seed, int64_t index) { return MixedBits(seed + static_cast<uint64_t>(index)) | 1; }

// Elements [begin, end) of a box, row by row.
struct BoxElements {
  const TensorBox& box;
  int64_t begin = 0, end = 0;
};

template <typename Word>
uint64_t SumOfRows(const Word* words, const BoxElements& elements) {
  const int64_t width = elements.box.columns();
  std::vector<uint64_t> columns(static_cast<size_t>(width));
  for (size_t i = 0; i < columns.size(); ++i) {
    columns[i] = Factor(kColumnSeed, elements.box.column_begin + static_cast<int64_t>(i));
  }
  const int64_t first = elements.begin / width, last = DivideUp(elements.end, width);
  std::vector<uint64_t> rows(static_cast<size_t>(last - first));  // apart, so that threads share nothing
  at::parallel_for(first, last, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t from = std::max(row * width, elements.begin), to = std::min((row + 1) * width, elements.end);
      uint64_t sum = 0;
      for (int64_t at = from; at < to; ++at) {
        sum += columns[static_cast<size_t>(at - row * width)] * words[at - elements.begin];
      }
      rows[static_cast<size_t>(row - first)] = sum * Factor(kRowSeed, elements.box.row_begin + row);
    }
  });
  return std::accumulate(rows.begin(), rows.end(), uint64_t{0});
}

uint64_t SumOf(const at::Tensor& values, const BoxElements& elements) {
  CHECK_EQ(values.numel(), elements.end - elements.begin);
  if (values.numel() == 0) return 0;
  const at::Tensor on_host = values.cpu().contiguous();
  const void* data = on_host.data_ptr();
  switch (on_host.element_size()) {
    case sizeof(uint16_t):
      return SumOfRows(static_cast<const uint16_t*>(data), elements);
    case sizeof(uint32_t):
      return SumOfRows(static_cast<const uint32_t*>(data), elements);
    case sizeof(uint64_t):
      return SumOfRows(static_cast<const uint64_t*>(data), elements);
    default:
      LOG(FATAL) << "no run has elements of " << on_host.element_size() << " bytes";
  }
}

// Sets a tensor's sum and elements to what this rank has of them: all of its box, or of sharded parameters its own.
void SumOwn(const Weights& weights, const HfTensor& tensor, int64_t* number) {
  const Parameter& p = weights.at(tensor.parameter);
  const int64_t first = tensor.row_begin * tensor.box.columns(), elements = tensor.box.rows() * tensor.box.columns();
  BoxElements own = {tensor.box, 0, elements};
  if (p.is_sharded()) {
    own.begin = std::clamp<int64_t>(p.state_begin - first, 0, elements);
    own.end = std::clamp<int64_t>(p.state_begin + p.weight_shard.numel() - first, own.begin, elements);
  }
  if (own.begin == own.end) return;
  const at::Tensor values = p.WeightElements(first + own.begin, own.end - own.begin);
  number[0] = static_cast<int64_t>(SumOf(values, own));
  number[1] = values.numel();
}

}  // namespace

absl::StatusOr<std::string> MeshDigest(const Weights& weights, const DigestRanks& ranks) {
  const std::vector<TensorSpec> tensors = ModelTensors(weights.shard.config);
  at::Tensor numbers =
      at::zeros({static_cast<int64_t>(tensors.size()), 2}, at::kLong);  // of each: its sum, its elements
  auto* number = numbers.mutable_data_ptr<int64_t>();
  auto own = weights.hf_tensors.begin();  // in the model's order, too
  for (const TensorSpec& tensor : tensors) {
    if (own != weights.hf_tensors.end() && own->name == tensor.name) {
      if (own->counts_in_norm) SumOwn(weights, *own, number);  // else another rank has the same box
      ++own;
    }
    number += 2;
  }
  CHECK(own == weights.hf_tensors.end()) << own->name << " is none of the model's tensors";
  Communicator* const shards = weights.is_sharded() ? &ranks.data : nullptr;
  for (Communicator* const axis : {&ranks.tp, &ranks.pp, shards}) {
    if (axis != nullptr && axis->size() > 1) RETURN_IF_ERROR(axis->AllReduceSum("weights_digest", numbers));
  }
  Sha256 digest;
  digest.UpdateInteger(static_cast<uint64_t>(weights.run_dtype));
  number = numbers.mutable_data_ptr<int64_t>();
  for (const TensorSpec& tensor : tensors) {
    digest.UpdateInteger(tensor.name.size());
    digest.Update(tensor.name);
    digest.UpdateInteger(static_cast<uint64_t>(*number++));
    digest.UpdateInteger(static_cast<uint64_t>(*number++));
  }
  return WeightsDigestText(digest.FinishHex());
}

std::string WeightsDigest(const Weights& weights) {
  LocalCommunicator alone("tp");
  return *MeshDigest(weights, {alone, alone, alone});
}

}  // namespace stemma::worker
