// The model's parameters and where each lies in its Hugging Face files.
//
// Everything follows from the table of common/model/model_tensors.h and this rank's boxes of its tensors
// (common/model/model_shard.h): tensors of one role and layer are rows of one parameter. HfTensor maps a Hugging Face
// name to its rows, for loading, export and gradient comparison. Tied embeddings are one parameter with one gradient.
// Owned by the engine; called on its thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/cost/parameter_units.h"
#include "common/model/model_config.h"
#include "common/model/model_shard.h"
#include "common/model/model_tensors.h"
#include "worker/optim/adamw.h"
#include "worker/optim/shards.h"

namespace stemma::worker {

// By role: the index of a layer's parameter in Weights::parameters; -1: the family has none.
class LayerWeights {
 public:
  LayerWeights() { indices_.fill(-1); }
  int& operator[](TensorRole role) { return indices_[static_cast<size_t>(role)]; }
  int operator[](TensorRole role) const { return indices_[static_cast<size_t>(role)]; }
  int first() const;  // the lowest of those that there are

 private:
  std::array<int, kNumTensorRoles> indices_;
};

struct HfTensor {
  std::string name;
  int parameter = -1;
  int64_t row_begin = 0, row_end = 0;  // of the parameter's dim 0
  TensorBox box;                       // of the whole tensor, that these rows are
  bool counts_in_norm = true;          // and is written by this rank; else another one has the same box, and does
  // Whose gradients add up to this tensor's: Placement.
  bool partial_over_tp = false, partial_over_kv_replicas = false, partial_over_first_and_last_stage = false;
};

// The ranks that hold the same part of the model, and whether they divide its parameters (ZeRO-3). The optimizer's
// states they divide always.
struct ParameterOwners {
  int64_t rank = 0, ranks = 1;
  bool shard_parameters = false;
};

// A unit of sharded parameters. Gathered it is all ranks' parts one after the other, in a slot that it shares with
// other units; each parameter stands at a multiple of kStateSlabUnit in it. Gradients are absent where none are made.
struct UnitBuffers {
  at::Tensor weights = {}, gradients = {};          // the slot's, flat
  at::Tensor own_weights = {}, own_gradients = {};  // this rank's part, flat
};

struct Weights {
  ModelShard shard;
  ModelConfig config;  // of `shard`: LocalConfig
  at::ScalarType run_dtype = at::kFloat;
  at::ScalarType accumulate_dtype = at::kFloat;    // of masters, gradients, gK/gV: fp64 in an fp64 run
  std::vector<Parameter> parameters;               // the embedding, the layers one after the other, final norm and head
  std::vector<LayerWeights> layers;                // of this rank
  int embedding = -1, final_norm = -1, head = -1;  // head == embedding when tied; -1: on other stages only
  int64_t vocabulary_begin = 0;                    // the first token of which this rank has the rows
  std::vector<HfTensor> hf_tensors;                // in ModelTensors order
  // What sharded parameters have beside (worker/model/sharded_weights.h); else empty.
  ParameterUnits units;
  std::vector<int64_t> unit_begins;       // of each unit the first parameter
  std::vector<UnitBuffers> unit_buffers;  // of each unit

  bool is_sharded() const { return !unit_buffers.empty(); }
  Parameter& at(int index) { return parameters[static_cast<size_t>(index)]; }
  const Parameter& at(int index) const { return parameters[static_cast<size_t>(index)]; }

  // Returns the rows of a Hugging Face tensor in its parameter's gradient.
  at::Tensor GradSlice(const HfTensor& tensor) const;
  // Returns what this rank keeps of the tensor's gradient from step to step, flat: all of it, or of sharded parameters
  // the elements that it owns, which may be none.
  at::Tensor KeptGradient(const HfTensor& tensor) const;
  // Writes `values` into the parameter's weight from its element `begin` on, and into the master what this rank owns of
  // it. Of sharded parameters both take only that.
  void StoreElements(int parameter, int64_t begin, const at::Tensor& values) const;
};

// Whether weights have gradients: those that are trained do.
enum class Gradients { kMade, kNone };

// Allocates everything but the optimizer's states (worker/optim/states.h); values are undefined until loaded.
Weights MakeWeights(const ModelShard& shard, at::ScalarType run_dtype, at::Device device,
                    Gradients gradients = Gradients::kMade, const ParameterOwners& owners = {});

// Returns which elements each of so many ranks owns: of sharded parameters a part of each unit.
OptimizerShards ShardsOf(const Weights& weights, int64_t ranks, int64_t bucket_elements = kBucketElements);

// Returns what this rank counts in the gradient norm, so that the ranks' sums add up to the model's.
ParameterRanges NormRanges(const Weights& weights);

}  // namespace stemma::worker
