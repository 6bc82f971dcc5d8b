// A verification (VerifyGroup): what the ranks are sent; what they answer, held against what was asked; what is said of
// it in the end. Pure. Used by JobRunner, and by tests that run the engine without a coordinator.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "server/protocol/log_prob_errors.h"
#include "server/protocol/request_plan.h"
#include "stemma/internal/v1/worker.pb.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

// Returns for each rank of the mesh the groups of the request that it computes in either run.
std::vector<std::vector<uint32_t>> PayloadGroupsOfRuns(const RequestPlan& plan, uint32_t num_groups,
                                                       const v1::Mesh& mesh);

// Returns what a rank is sent, of what it is to compute in each run.
internal::v1::Verify MakeVerify(const std::string& id, internal::v1::Prepare reuse, internal::v1::Prepare dense);

class Verification {
 public:
  // `plan`: with that of the dense run. `model` outlives it.
  Verification(std::shared_ptr<const TrainingRequest> request, std::shared_ptr<const RequestPlan> plan,
               const ModelConfig& model, v1::Mesh mesh);

  // Takes some log-probs of a run. Errors: InvalidArgument - they were not asked for.
  absl::Status AddResult(const internal::v1::ResultChunk& chunk) { return errors_.Add(chunk.group(), chunk.dense()); }

  // Takes a rank's end, once. Errors: InvalidArgument - its votes, or its gradients' names, cannot be.
  absl::Status Add(uint32_t rank, internal::v1::VerifyDone done);

  // Returns how far the runs are apart, without step and lineage. REQUIRES: all ranks have ended without a failure.
  // Errors: those of a step that could not be computed; INTERNAL - a run brought less than the other.
  absl::StatusOr<v1::VerifyGroupResponse> Answer() const;

 private:
  using VoteOf = const internal::v1::Vote& (internal::v1::VerifyDone::*)() const;

  std::vector<internal::v1::Vote> Votes(VoteOf vote) const;
  absl::Status CheckGradients(const internal::v1::VerifyDone& done) const;
  absl::Status RunProblem(const internal::v1::Vote& vote, const char* run) const;
  void AddParameters(v1::VerifyGroupResponse& response) const;

  const std::shared_ptr<const TrainingRequest> request_;
  const std::shared_ptr<const RequestPlan> plan_;
  const ModelConfig& model_;
  const v1::Mesh mesh_;
  LogProbErrors errors_;
  std::vector<internal::v1::VerifyDone> done_;  // by rank
};

}  // namespace stemma::server
