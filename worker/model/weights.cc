#include "worker/model/weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "worker/model/sharded_weights.h"

namespace stemma::worker {
namespace {

// Where a parameter stands among the others: the embedding, the layers one after the other, what follows them; within a
// layer by role. The order of sums over all parameters follows it.
using Place = std::tuple<int, int64_t, TensorRole>;

Place PlaceOf(const TensorSpec& tensor) {
  const int part = tensor.layer >= 0 ? 1 : tensor.role < TensorRole::kNorm1 ? 0 : 2;
  return {part, tensor.layer, tensor.role};
}

// A parameter whose rows are those of `tensors`, in their order.
Parameter MakeParameter(const std::vector<const TensorSpec*>& tensors, const Weights& weights, at::Device device,
                        Gradients gradients) {
  const TensorSpec& first = *tensors.front();
  std::vector<int64_t> shape = first.shape;
  for (size_t i = 1; i < tensors.size(); ++i) shape[0] += tensors[i]->shape[0];
  Parameter p;
  p.name = absl::StrCat(first.layer < 0 ? "" : absl::StrCat("layers.", first.layer, "."),
                        std::string(TensorRoleName(first.role)));
  p.weight = at::empty(shape, at::TensorOptions(device).dtype(weights.run_dtype));
  if (gradients == Gradients::kMade) {
    p.grad = at::zeros(shape, at::TensorOptions(device).dtype(weights.accumulate_dtype));
  }
  return p;
}

}  // namespace

int LayerWeights::first() const {
  int first = std::numeric_limits<int>::max();
  for (const int index : indices_) {
    if (index >= 0) first = std::min(first, index);
  }
  return first;
}

void Weights::StoreElements(int parameter, int64_t begin, const at::Tensor& values) const {
  const Parameter& p = at(parameter);
  const at::Tensor exact = values.to(accumulate_dtype);
  // Stores what lies in a tensor of so many elements from the first owned one on.
  const auto store_owned = [&](int64_t owned, const auto& elements) {
    const int64_t from = std::max(begin, p.state_begin), to = std::min(begin + exact.numel(), p.state_begin + owned);
    if (from < to) elements(from, to - from).copy_(exact.slice(0, from - begin, to - begin));
  };
  if (p.is_sharded()) {
    store_owned(p.weight_shard.numel(), [&](int64_t at, int64_t count) { return p.WeightElements(at, count); });
  } else {
    Parameter::Elements(p.weight, begin, exact.numel()).copy_(exact);
  }
  if (p.master_is_weight() || !p.master.defined()) return;
  store_owned(p.master.numel(), [&](int64_t at, int64_t count) { return p.MasterElements(at, count); });
}

at::Tensor Weights::KeptGradient(const HfTensor& tensor) const {
  const Parameter& p = at(tensor.parameter);
  if (!p.is_sharded()) return GradSlice(tensor).view(-1);
  const int64_t columns = tensor.box.columns();
  const int64_t begin = std::max(tensor.row_begin * columns, p.state_begin);
  const int64_t end = std::min(tensor.row_end * columns, p.state_begin + p.grad_shard.numel());
  return begin < end ? p.GradElements(begin, end - begin) : p.grad_shard.narrow(0, 0, 0);
}

at::Tensor Weights::GradSlice(const HfTensor& tensor) const {
  return at(tensor.parameter).grad.slice(0, tensor.row_begin, tensor.row_end);
}

Weights MakeWeights(const ModelShard& shard, at::ScalarType run_dtype, at::Device device, Gradients gradients,
                    const ParameterOwners& owners) {
  Weights weights;
  weights.shard = shard;
  weights.config = shard.LocalConfig();
  weights.run_dtype = run_dtype;
  weights.accumulate_dtype = run_dtype == at::kDouble ? at::kDouble : at::kFloat;
  weights.layers.resize(static_cast<size_t>(weights.config.num_layers));
  LayerWeights outside;
  const auto index_of = [&](const TensorSpec& t) -> int& {
    return (t.layer < 0 ? outside : weights.layers[static_cast<size_t>(t.layer - shard.layer_begin)])[t.role];
  };
  const std::vector<LocalTensor> tensors = LocalTensors(shard);
  std::map<Place, std::vector<const TensorSpec*>> parameters;
  for (const LocalTensor& tensor : tensors) parameters[PlaceOf(tensor.spec)].push_back(&tensor.spec);
  for (const auto& [place, parts] : parameters) {
    index_of(*parts.front()) = static_cast<int>(weights.parameters.size());
    // Sharded ones get their places in buffers below.
    weights.parameters.push_back(
        MakeParameter(parts, weights, owners.shard_parameters ? at::kMeta : device, gradients));
  }
  weights.embedding = outside[TensorRole::kEmbedding];
  weights.final_norm = outside[TensorRole::kFinalNorm];
  const bool ties_here = weights.config.tie_word_embeddings && shard.is_last();
  weights.head = ties_here ? weights.embedding : outside[TensorRole::kHead];
  std::vector<int64_t> rows(weights.parameters.size());  // that have a name already
  for (const auto& [spec, box] : tensors) {
    const int index = index_of(spec);
    int64_t& row = rows[static_cast<size_t>(index)];
    const Placement placement = PlacementOf(spec, shard);
    weights.hf_tensors.push_back({spec.name, index, row, row + box.rows(), box, placement.counts_in_norm,
                                  placement.partial_over_tp, placement.partial_over_kv_replicas,
                                  placement.partial_over_first_and_last_stage});
    row += box.rows();
    if (spec.cut == TensorCut::kVocabulary) weights.vocabulary_begin = box.row_begin;
  }
  if (owners.shard_parameters) ShardParameters(owners.rank, owners.ranks, device, weights);
  if (run_dtype == weights.accumulate_dtype) {
    for (Parameter& p : weights.parameters) p.master = p.weight;
  }
  return weights;
}

OptimizerShards ShardsOf(const Weights& weights, int64_t ranks, int64_t bucket_elements) {
  const std::vector<int64_t> elements = ElementsOf(weights.parameters);
  return weights.is_sharded() ? OptimizerShards(elements, ranks, weights.unit_begins)
                              : OptimizerShards(elements, ranks, bucket_elements);
}

ParameterRanges NormRanges(const Weights& weights) {
  // The tensors of a parameter are its rows in their order, so neighbours that count are one range.
  std::vector<ParameterRanges> of_parameter(weights.parameters.size());
  for (const HfTensor& tensor : weights.hf_tensors) {
    if (!tensor.counts_in_norm) continue;
    const int64_t columns = tensor.box.columns(), begin = tensor.row_begin * columns;
    ParameterRanges& ranges = of_parameter[static_cast<size_t>(tensor.parameter)];
    const bool joins = !ranges.empty() && ranges.back().begin + ranges.back().count == begin;
    if (!joins) ranges.push_back({tensor.parameter, begin, 0});
    ranges.back().count += (tensor.row_end - tensor.row_begin) * columns;
  }
  ParameterRanges ranges;
  for (const ParameterRanges& some : of_parameter) ranges.insert(ranges.end(), some.begin(), some.end());
  return ranges;
}

}  // namespace stemma::worker
