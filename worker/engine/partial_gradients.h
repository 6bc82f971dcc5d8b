// Gradients that several ranks of one copy of the model have parts of, and their sums: norm weights, of which every
// tensor-parallel rank saw its rows or its heads only; K/V heads that several of these hold, of which every one saw its
// query heads only; and a tied embedding, of which the first stage of a pipeline has the gradient of the lookup and the
// last one that of the head (PlacementOf() in common/model/model_shard.h). After Sum every rank has the same bits.
//
// Owned by ModelEngine; engine thread only. All ranks of tp make the same calls in the same order, and the first and
// the last stage both sum everything once their passes have ended. With one rank nothing is partial and nothing moves.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker/model/weights.h"
#include "worker/parallel/mesh_ranks.h"

namespace stemma::worker {

// The name of the collectives.
inline constexpr char kPartialGradientsName[] = "partial_gradients";

class PartialGradients {
 public:
  // Takes all the memory that it needs. Both outlive it.
  PartialGradients(const Weights& weights, const MeshRanks& ranks);

  // Sums those of the parameters from `first` on that no call since the last Begin has summed, layer by layer. A
  // layer's parameters are summed together. Errors: Unavailable - a rank is gone; some are summed and others not.
  absl::Status Sum(int64_t first);
  // Begins a step: none is summed.
  void Begin() { next_ = parts_.size(); }

 private:
  // What is summed together: of one layer, or of what follows the layers.
  struct Part {
    int64_t first_parameter = 0;
    std::vector<at::Tensor> of_all;     // flat views of gradients that all ranks have a part of
    std::vector<at::Tensor> of_kv;      // of those that neighbours with the same K/V heads have
    std::vector<at::Tensor> of_stages;  // of those that the first and the last stage have
  };

  absl::Status SumPart(const Part& part);
  absl::Status SumOverStages(const at::Tensor& values);

  const MeshRanks& ranks_;
  std::vector<Part> parts_;  // in the order of the parameters
  size_t next_ = 0;          // parts_[next_ ...] are summed
  at::Tensor buffer_;        // of the largest of_all
  at::Tensor from_stage_;    // what comes from the other stage at a time: of the largest of_stages, or a part of it
};

}  // namespace stemma::worker
