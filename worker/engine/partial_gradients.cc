#include "worker/engine/partial_gradients.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "common/base/status_macros.h"
#include "common/cost/state_shards.h"

namespace stemma::worker {
namespace {

int64_t Elements(const std::vector<at::Tensor>& tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return elements;
}

}  // namespace

PartialGradients::PartialGradients(const Weights& weights, const MeshRanks& ranks) : ranks_(ranks) {
  std::vector<int64_t> begins = {0};  // of the parts, in parameters
  for (const LayerWeights& layer : weights.layers) begins.push_back(layer.first());
  if (weights.final_norm >= 0) begins.push_back(weights.final_norm);
  std::map<int64_t, Part> parts;
  for (const HfTensor& tensor : weights.hf_tensors) {
    const std::pair<bool, std::vector<at::Tensor> Part::*> kinds[] = {
        {tensor.partial_over_tp, &Part::of_all},
        {tensor.partial_over_kv_replicas, &Part::of_kv},
        {tensor.partial_over_first_and_last_stage, &Part::of_stages}};
    for (const auto& [is_partial, list] : kinds) {
      if (!is_partial) continue;
      const at::Tensor kept = weights.KeptGradient(tensor);
      if (kept.numel() == 0) continue;  // the ranks with the other parts keep the same elements
      Part& part = parts[*std::prev(std::upper_bound(begins.begin(), begins.end(), tensor.parameter))];
      (part.*list).push_back(kept);
    }
  }
  int64_t largest = 0, largest_of_stages = 0;
  for (auto& [first, part] : parts) {
    part.first_parameter = first;
    largest = std::max(largest, Elements(part.of_all));
    for (const at::Tensor& values : part.of_stages) largest_of_stages = std::max(largest_of_stages, values.numel());
    parts_.push_back(std::move(part));
  }
  largest_of_stages = std::min(largest_of_stages, kStageGradientElements);
  const auto empty = [&](int64_t elements) { return at::empty({elements}, weights.parameters.front().grad.options()); };
  if (largest > 0) buffer_ = empty(largest);
  if (largest_of_stages > 0) from_stage_ = empty(largest_of_stages);
  Begin();
}

absl::Status PartialGradients::Sum(int64_t first) {
  for (; next_ > 0 && parts_[next_ - 1].first_parameter >= first; --next_) RETURN_IF_ERROR(SumPart(parts_[next_ - 1]));
  return absl::OkStatus();
}

absl::Status PartialGradients::SumPart(const Part& part) {
  for (at::Tensor values : part.of_kv) RETURN_IF_ERROR(ranks_.kv->AllReduceSum(kPartialGradientsName, values));
  for (const at::Tensor& values : part.of_stages) RETURN_IF_ERROR(SumOverStages(values));
  if (part.of_all.empty()) return absl::OkStatus();
  at::Tensor values = buffer_.narrow(0, 0, Elements(part.of_all));
  const auto for_each = [&](const auto& copy) {
    int64_t begin = 0;
    for (const at::Tensor& gradient : part.of_all) {
      copy(gradient, values.narrow(0, begin, gradient.numel()));
      begin += gradient.numel();
    }
  };
  for_each([](const at::Tensor& gradient, const at::Tensor& place) { place.copy_(gradient); });
  RETURN_IF_ERROR(ranks_.tp->AllReduceSum(kPartialGradientsName, values));
  for_each([](const at::Tensor& gradient, const at::Tensor& place) { gradient.copy_(place); });
  return absl::OkStatus();
}

absl::Status PartialGradients::SumOverStages(const at::Tensor& values) {
  Communicator& stages = *ranks_.pp;
  const bool first = stages.rank() == 0;
  const int other = first ? stages.size() - 1 : 0;
  for (int64_t begin = 0; begin < values.numel(); begin += kStageGradientElements) {
    const at::Tensor own = values.slice(0, begin, begin + kStageGradientElements);
    at::Tensor from = from_stage_.narrow(0, 0, own.numel());
    // One sends while the other receives: two that both send first may wait for each other.
    if (first) RETURN_IF_ERROR(stages.Send(kPartialGradientsName, own, other));
    RETURN_IF_ERROR(stages.Receive(kPartialGradientsName, from, other));
    if (!first) RETURN_IF_ERROR(stages.Send(kPartialGradientsName, own, other));
    own.add_(from);  // in either order the same bits
  }
  return absl::OkStatus();
}

}  // namespace stemma::worker
