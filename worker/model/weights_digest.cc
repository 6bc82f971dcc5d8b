#include "worker/model/weights_digest.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <glog/logging.h>

#include <numeric>
#include <vector>

#include "common/base/digest.h"
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

template <typename Word>
uint64_t SumOfRows(const Word* words, const TensorBox& box) {
  std::vector<uint64_t> columns(static_cast<size_t>(box.columns()));
  for (size_t i = 0; i < columns.size(); ++i) {
    columns[i] = Factor(kColumnSeed, box.column_begin + static_cast<int64_t>(i));
  }
  std::vector<uint64_t> rows(static_cast<size_t>(box.rows()));  // apart, so that threads share nothing
  at::parallel_for(0, box.rows(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const Word* of_row = words + row * box.columns();
      uint64_t sum = 0;
      for (size_t i = 0; i < columns.size(); ++i) sum += columns[i] * of_row[i];
      rows[static_cast<size_t>(row)] = sum * Factor(kRowSeed, box.row_begin + row);
    }
  });
  return std::accumulate(rows.begin(), rows.end(), uint64_t{0});
}

uint64_t SumOf(const at::Tensor& values, const TensorBox& box) {
  CHECK_EQ(values.numel(), box.rows() * box.columns());
  const at::Tensor on_host = values.cpu().contiguous();
  const void* data = on_host.data_ptr();
  switch (on_host.element_size()) {
    case sizeof(uint16_t):
      return SumOfRows(static_cast<const uint16_t*>(data), box);
    case sizeof(uint32_t):
      return SumOfRows(static_cast<const uint32_t*>(data), box);
    case sizeof(uint64_t):
      return SumOfRows(static_cast<const uint64_t*>(data), box);
    default:
      LOG(FATAL) << "no run has elements of " << on_host.element_size() << " bytes";
  }
}

}  // namespace

absl::StatusOr<std::string> MeshDigest(const Weights& weights, Communicator& tp, Communicator& pp) {
  const std::vector<TensorSpec> tensors = ModelTensors(weights.shard.config);
  at::Tensor numbers =
      at::zeros({static_cast<int64_t>(tensors.size()), 2}, at::kLong);  // of each: its sum, its elements
  auto* number = numbers.mutable_data_ptr<int64_t>();
  auto own = weights.hf_tensors.begin();  // in the model's order, too
  for (const TensorSpec& tensor : tensors) {
    if (own != weights.hf_tensors.end() && own->name == tensor.name) {
      if (own->counts_in_norm) {  // else another rank has the same box
        const at::Tensor values = weights.at(own->parameter).weight.slice(0, own->row_begin, own->row_end);
        number[0] = static_cast<int64_t>(SumOf(values, own->box));
        number[1] = values.numel();
      }
      ++own;
    }
    number += 2;
  }
  CHECK(own == weights.hf_tensors.end()) << own->name << " is none of the model's tensors";
  for (Communicator* const axis : {&tp, &pp}) {
    if (axis->size() > 1) RETURN_IF_ERROR(axis->AllReduceSum("weights_digest", numbers));
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
  return *MeshDigest(weights, alone, alone);
}

}  // namespace stemma::worker
