// What one rank holds of a model: which box of each Hugging Face tensor, and what becomes of that box's gradient. Pure
// and torch-free; the cuts themselves are columns of the table of tensors (common/model/model_tensors.h).
//
// Weights are made and loaded by these boxes, and the gradient norm counts by them. With one rank every box is the
// whole tensor. Tensor parallelism cuts within layers, expert parallelism deals whole experts to its ranks, pipeline
// parallelism cuts between layers; the other axes hold copies.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/model/model_tensors.h"

namespace stemma {

// A rank's coordinates on the axes that cut the model.
struct ShardPlace {
  int64_t tp_rank = 0, tp_size = 1;
  int64_t pp_rank = 0, pp_size = 1;
  int64_t ep_size = 1;  // sets of neighbouring tp ranks, each of which has some of the experts
};

struct ModelShard {
  ModelConfig config;  // of the whole model
  ShardPlace place;
  int64_t layer_begin = 0, layer_end = 0;

  // Returns how many neighbouring tensor-parallel ranks hold the same K/V head, each for query heads of its own; 1:
  // every rank has K/V heads that no other has.
  int64_t kv_replicas() const;

  // Returns how many neighbouring tensor-parallel ranks share the columns of one expert, as its set does.
  int64_t ranks_of_expert() const { return place.tp_size / place.ep_size; }
  // Returns the first of a layer's experts that this rank has columns of. REQUIRES: the model has experts.
  int64_t expert_begin() const;

  bool is_first() const { return layer_begin == 0; }
  bool is_last() const { return layer_end == config.num_layers; }
  // Returns what the layers of this rank compute with: its heads, its FFN columns, its experts, its layers. The
  // vocabulary and the router stay whole: token ids and numbers of experts are of the model.
  ModelConfig LocalConfig() const;
};

// Cuts layers as common/model/mesh_rules.h says, and the vocabulary as evenly as it goes; stages have the layers of
// common/model/stage_layers.h.
// Errors: InvalidArgument - an axis cannot cut this model so; names the axis and the model's numbers.
absl::StatusOr<ModelShard> MakeModelShard(const ModelConfig& config, const ShardPlace& place);

// Rows and columns of a tensor; a vector has one column.
struct TensorBox {
  int64_t row_begin = 0, row_end = 0;
  int64_t column_begin = 0, column_end = 0;

  int64_t rows() const { return row_end - row_begin; }
  int64_t columns() const { return column_end - column_begin; }
  bool operator==(const TensorBox&) const = default;
};

// Returns what the rank holds of a tensor; nullopt: nothing.
std::optional<TensorBox> BoxOf(const TensorSpec& tensor, const ModelShard& shard);

// The tensors that a rank holds some of, with the shapes of their boxes, in ModelTensors order.
struct LocalTensor {
  TensorSpec spec;  // name of the whole tensor, shape of the box
  TensorBox box;

  // Returns how many elements the rank has of this tensor, and of those that are like it.
  int64_t elements() const { return spec.copies * box.rows() * box.columns(); }
};
std::vector<LocalTensor> LocalTensors(const ModelShard& shard);

// The same of TensorsOfOneExpert: what is summed over tensors counts each `copies` times.
std::vector<LocalTensor> LocalTensorsOfOneExpert(const ModelShard& shard);

// What a rank's gradient of a tensor is before any sum over ranks of the axes that cut the model. Over data and context
// parallelism every gradient is partial.
struct Placement {
  // Every tensor-parallel rank computed the gradient from a part of the rows or of the heads: their sum is the
  // gradient.
  bool partial_over_tp = false;
  // K/V heads that several tensor-parallel ranks hold: the sum over ModelShard::kv_replicas() neighbours.
  bool partial_over_kv_replicas = false;
  // A tied embedding: the first stage has the gradient of the lookup, the last one that of the head.
  bool partial_over_first_and_last_stage = false;
  // One of the ranks that hold the same box counts it in the gradient norm.
  bool counts_in_norm = true;
};
Placement PlacementOf(const TensorSpec& tensor, const ModelShard& shard);

}  // namespace stemma
