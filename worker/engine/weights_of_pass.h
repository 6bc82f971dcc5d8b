// The weights that a forward-only pass runs with: the engine's own, or a checkpoint's, which are here while it runs.
// Made by ModelEngine for each pass; engine thread only.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "stemma/internal/v1/worker.pb.h"
#include "worker/backend/backend.h"
#include "worker/engine/pass_runner.h"
#include "worker/model/sharded_units.h"
#include "worker/model/weights.h"
#include "worker/parallel/mesh_ranks.h"

namespace stemma::worker {

class WeightsOfPass {
 public:
  // `own`: the engine's, on the device of `backend`. All outlive it.
  WeightsOfPass(const internal::v1::Configure& configure, const internal::v1::PassWeights& wanted, const Weights& own,
                const Backend& backend, const MeshRanks& ranks)
      : configure_(configure), wanted_(wanted), own_(own), backend_(backend), ranks_(ranks) {}

  // Reads a checkpoint's, where these are wanted. Errors: as of LoadCheckpointWeights; InvalidArgument - a name that is
  // none.
  absl::Status Read();
  // Tells whether the weights that were read have the digest that they must have. All ranks that hold the model come to
  // it. Errors: CORRUPT_CHECKPOINT; Unavailable.
  absl::Status CheckDigest() const;
  // Lets the pass run with them.
  void Use(PassOptions& options);

 private:
  bool of_checkpoint() const { return !wanted_.checkpoint().empty(); }

  const internal::v1::Configure& configure_;
  const internal::v1::PassWeights& wanted_;
  const Weights& own_;
  const Backend& backend_;
  const MeshRanks& ranks_;
  Weights read_;
  std::optional<ShardedUnits> units_;
};

}  // namespace stemma::worker
