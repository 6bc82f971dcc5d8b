// Parameter: a weight and what its update needs. Owned by worker/model's Weights, stepped by worker/optim.
//
// Gradients, masters and moments have one dtype: fp32, or fp64 in an fp64 run. A bf16 weight is a copy of its master.
// States (moments, and masters that are not the weights themselves) live on the device or in host memory. A rank holds
// those of the elements that it owns (worker/optim/shards.h): of all of them, or of one range.
//
// Where parameters are sharded (ZeRO-3) that is so of weights and gradients, too: the shards. `weight` and `grad` are
// then places in buffers that other layers' use in turn, and hold something only while worker/model/sharded_units.h has
// gathered them; a master that is the weight is its shard.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace stemma::worker {

struct Parameter {
  std::string name;                     // ours: fused tensors have one name ("layers.0.qkv.weight")
  at::Tensor weight;                    // run dtype
  at::Tensor master;                    // fp32 / fp64; the same tensor as weight unless the run is bf16: then a state
  at::Tensor grad;                      // of the master's dtype
  at::Tensor exp_avg, exp_avg_sq;       // states, by MakeStates; shaped like the weight, or flat where a part is owned
  int64_t state_begin = 0;              // the weight's first element that the states, and the shards, are of
  at::Tensor weight_shard, grad_shard;  // flat, of what this rank owns; undefined: parameters are whole
  bool states_on_host = false;

  bool is_matrix() const { return weight.dim() >= 2; }
  bool master_is_weight() const { return weight.is_same(master); }
  // Elements [begin, begin + count) of the weight or gradient; of a state, which has them.
  static at::Tensor Elements(const at::Tensor& x, int64_t begin, int64_t count) {
    return x.view(-1).narrow(0, begin, count);
  }
  at::Tensor StateElements(const at::Tensor& state, int64_t begin, int64_t count) const {
    return Elements(state, begin - state_begin, count);
  }
  bool is_sharded() const { return weight_shard.defined(); }
  // Return what is kept of elements from step to step: of sharded parameters, those that this rank owns.
  at::Tensor WeightElements(int64_t begin, int64_t count) const {
    return is_sharded() ? StateElements(weight_shard, begin, count) : Elements(weight, begin, count);
  }
  at::Tensor GradElements(int64_t begin, int64_t count) const {
    return is_sharded() ? StateElements(grad_shard, begin, count) : Elements(grad, begin, count);
  }
  at::Tensor MasterElements(int64_t begin, int64_t count) const {
    return master_is_weight() ? WeightElements(begin, count) : StateElements(master, begin, count);
  }
};

}  // namespace stemma::worker
