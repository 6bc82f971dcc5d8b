// How many rows chose each expert of each layer, in the forwards of one step.
//
// A row is counted twice over: once as it is computed, and as a dense schedule counts it, where a row of a shared
// prefix stands for one row of each rollout behind it, its logical multiplicity (the paper, Appendix B). Counts of a
// plan with shared prefixes and of a dense one are the same numbers. Filled by worker/model on the engine thread, read
// by worker/engine. It lies on the host, as the choices do that a dispatch is made of.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace stemma::worker {

class ExpertLoad {
 public:
  struct Layer {
    std::vector<uint64_t> logical_rows, computed_rows;  // by expert
  };

  ExpertLoad() = default;  // of a model without experts
  ExpertLoad(int64_t layers, int64_t experts);

  // Adds the choices of a layer's rows. `experts_TU`: int64, on the host. `multiplicity_T`: of each row; empty: 1.
  void Add(int64_t layer, const at::Tensor& experts_TU, std::span<const uint32_t> multiplicity_T);

  // Returns the counts by layer of this rank.
  const std::vector<Layer>& layers() const { return layers_; }

 private:
  std::vector<Layer> layers_;
};

// Where the rows of a forward are counted, and how often each.
struct CountedRows {
  ExpertLoad* load = nullptr;
  std::vector<uint32_t> multiplicity_T = {};  // of each row, on whichever tensor-parallel rank it is; empty: 1
};

}  // namespace stemma::worker
