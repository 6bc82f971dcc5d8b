#include "common/model/model_shard.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/mesh_rules.h"
#include "common/model/stage_layers.h"
#include "glog/logging.h"

namespace stemma {
namespace {

// Part `rank` of `size` items dealt to `ranks` in order, as evenly as they go.
std::pair<int64_t, int64_t> PartOf(int64_t size, int64_t rank, int64_t ranks) {
  return {size * rank / ranks, size * (rank + 1) / ranks};
}

absl::Status CheckAxis(const char* axis, int64_t rank, int64_t size) {
  if (size < 1 || rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(absl::StrCat(axis, ": rank ", rank, " of ", size));
  }
  return absl::OkStatus();
}

bool IsOnStage(const TensorSpec& tensor, const ModelShard& shard) {
  if (tensor.layer >= 0) return tensor.layer >= shard.layer_begin && tensor.layer < shard.layer_end;
  if (tensor.role != TensorRole::kEmbedding) return shard.is_last();
  return shard.is_first() || (shard.is_last() && shard.config.tie_word_embeddings);
}

// Returns how many of a layer's experts a rank has columns of.
int64_t ExpertsHeld(const ModelShard& shard) { return shard.config.experts.value().count / shard.place.ep_size; }

}  // namespace

int64_t ModelShard::kv_replicas() const { return std::max<int64_t>(place.tp_size / config.num_kv_heads, 1); }

int64_t ModelShard::expert_begin() const { return place.tp_rank / ranks_of_expert() * ExpertsHeld(*this); }

ModelConfig ModelShard::LocalConfig() const {
  ModelConfig local = config;
  local.num_layers = layer_end - layer_begin;
  local.num_heads /= place.tp_size;
  local.num_kv_heads = std::max<int64_t>(config.num_kv_heads / place.tp_size, 1);
  local.ffn_size /= ranks_of_expert();
  if (local.experts) local.experts->ep = place.ep_size;
  return local;
}

absl::StatusOr<ModelShard> MakeModelShard(const ModelConfig& config, const ShardPlace& place) {
  for (const absl::Status& status :
       {CheckAxis("tp", place.tp_rank, place.tp_size), CheckAxis("pp", place.pp_rank, place.pp_size),
        CheckAxis("ep", 0, place.ep_size)}) {
    if (!status.ok()) return status;
  }
  if (const auto problems = TensorParallelProblems(config, place.tp_size, place.ep_size); !problems.empty()) {
    return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
  }
  if (const auto problems = PipelineProblems(config, place.pp_size); !problems.empty()) {
    return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
  }
  const std::vector<int64_t> begins = StageBegins(config, place.pp_size);
  const auto stage = static_cast<size_t>(place.pp_rank);
  return ModelShard{config, place, begins[stage], begins[stage + 1]};
}

std::optional<TensorBox> BoxOf(const TensorSpec& tensor, const ModelShard& shard) {
  if (!IsOnStage(tensor, shard)) return std::nullopt;
  const bool is_vector = tensor.shape.size() == 1;
  TensorBox box{0, tensor.shape[0], 0, is_vector ? 1 : tensor.shape[1]};
  int64_t rank = shard.place.tp_rank, ranks = shard.place.tp_size;
  if (tensor.expert >= 0) {
    const int64_t first = shard.expert_begin();
    if (tensor.expert < first || tensor.expert >= first + ExpertsHeld(shard)) return std::nullopt;
    ranks = shard.ranks_of_expert();
    rank %= ranks;
  }
  switch (tensor.cut) {
    case TensorCut::kReplicated:
      break;
    case TensorCut::kColumn:
    case TensorCut::kVocabulary:
      std::tie(box.row_begin, box.row_end) = PartOf(tensor.shape[0], rank, ranks);
      break;
    case TensorCut::kKvColumn: {
      const int64_t replicas = shard.kv_replicas();
      std::tie(box.row_begin, box.row_end) = PartOf(tensor.shape[0], rank / replicas, ranks / replicas);
      break;
    }
    case TensorCut::kRow:
      CHECK(!is_vector) << tensor.name;
      std::tie(box.column_begin, box.column_end) = PartOf(tensor.shape[1], rank, ranks);
      break;
  }
  return box;
}

namespace {

std::vector<LocalTensor> LocalOf(std::vector<TensorSpec> specs, const ModelShard& shard) {
  std::vector<LocalTensor> tensors;
  for (TensorSpec& spec : specs) {
    const std::optional<TensorBox> box = BoxOf(spec, shard);
    if (!box.has_value()) continue;
    spec.shape[0] = box->rows();
    if (spec.shape.size() > 1) spec.shape[1] = box->columns();
    tensors.push_back({std::move(spec), *box});
  }
  return tensors;
}

}  // namespace

std::vector<LocalTensor> LocalTensors(const ModelShard& shard) { return LocalOf(ModelTensors(shard.config), shard); }

std::vector<LocalTensor> LocalTensorsOfOneExpert(const ModelShard& shard) {
  const int64_t expert = shard.config.experts ? shard.expert_begin() : 0;
  std::vector<TensorSpec> specs = TensorsOfOneExpert(shard.config, expert);
  for (TensorSpec& spec : specs) {
    if (spec.expert >= 0) spec.copies /= shard.place.ep_size;
  }
  return LocalOf(std::move(specs), shard);
}

Placement PlacementOf(const TensorSpec& tensor, const ModelShard& shard) {
  Placement placement;
  placement.partial_over_tp = shard.place.tp_size > 1 && tensor.cut == TensorCut::kReplicated;
  placement.partial_over_first_and_last_stage =
      shard.place.pp_size > 1 && shard.config.tie_word_embeddings && tensor.role == TensorRole::kEmbedding;
  placement.partial_over_kv_replicas = tensor.cut == TensorCut::kKvColumn && shard.kv_replicas() > 1;
  placement.counts_in_norm = (!placement.partial_over_tp || shard.place.tp_rank == 0) &&
                             (!placement.partial_over_kv_replicas || shard.place.tp_rank % shard.kv_replicas() == 0) &&
                             (!placement.partial_over_first_and_last_stage || shard.is_first());
  return placement;
}

}  // namespace stemma
