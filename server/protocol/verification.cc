#include "server/protocol/verification.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/mesh.h"
#include "common/base/status_macros.h"
#include "common/model/model_tensors.h"
#include "glog/logging.h"
#include "server/protocol/gradient_problem.h"
#include "server/protocol/rank_parts.h"
#include "server/protocol/step_messages.h"
#include "server/protocol/step_metrics.h"
#include "server/protocol/vote_merge.h"
#include "server/protocol/worker_messages.h"

namespace stemma::server {
namespace {

using internal::v1::VerifyDone;
using internal::v1::Vote;

// What no run has whose step is not applied.
constexpr const char* kOfApply[] = {"time/apply_s", "predicted/apply_s", "time/gather_s", "ranks/gather_bytes"};

// `elapsed_s`: of the slowest rank.
void SetRunMetrics(const v1::UpdateHeader& header, const RequestPlan& plan, const std::vector<Vote>& votes,
                   const v1::Mesh& mesh, double elapsed_s, Metrics& metrics) {
  SetStepMetrics({.header = header,
                  .report = StepReportOf(plan, 0),
                  .state = plan.report.state(),
                  .numbers = plan.numbers(0),
                  .vote = MergeVotes(votes),
                  .elapsed = absl::Seconds(elapsed_s),
                  .votes = votes,
                  .expert_sets = EpSize(mesh)},
                 metrics);
  for (const char* name : kOfApply) metrics.erase(name);
}

}  // namespace

std::vector<std::vector<uint32_t>> PayloadGroupsOfRuns(const RequestPlan& plan, uint32_t num_groups,
                                                       const v1::Mesh& mesh) {
  const std::vector<std::vector<uint32_t>> reuse = PayloadGroupsOfRanks(plan.plan, num_groups, DpSize(mesh));
  const std::vector<std::vector<uint32_t>> dense = PayloadGroupsOfRanks(plan.dense->plan, num_groups, DpSize(mesh));
  std::vector<std::vector<uint32_t>> both(reuse.size());
  for (size_t copy = 0; copy < both.size(); ++copy) {
    std::ranges::set_union(reuse[copy], dense[copy], std::back_inserter(both[copy]));
  }
  return ForRanks(std::move(both), mesh);
}

internal::v1::Verify MakeVerify(const std::string& id, internal::v1::Prepare reuse, internal::v1::Prepare dense) {
  internal::v1::Verify verify;
  verify.set_id(id);
  *verify.mutable_reuse() = std::move(reuse);
  *verify.mutable_dense() = std::move(dense);
  for (internal::v1::Prepare* run : {verify.mutable_reuse(), verify.mutable_dense()}) {
    run->mutable_header()->set_return_log_probs(true);
    run->mutable_key()->set_request_id(id);
  }
  return verify;
}

Verification::Verification(std::shared_ptr<const TrainingRequest> request, std::shared_ptr<const RequestPlan> plan,
                           const ModelConfig& model, v1::Mesh mesh)
    : request_(std::move(request)),
      plan_(std::move(plan)),
      model_(model),
      mesh_(std::move(mesh)),
      errors_(request_),
      done_(NumRanks(mesh_)) {
  CHECK(plan_->dense != nullptr) << "a verification needs the plan of its dense run";
}

absl::Status Verification::Add(uint32_t rank, VerifyDone done) {
  if (!done.has_failure()) {
    RETURN_IF_ERROR(CheckVote(mesh_, model_, rank, done.reuse()));
    RETURN_IF_ERROR(CheckVote(mesh_, model_, rank, done.dense()));
    RETURN_IF_ERROR(CheckGradients(done));
  }
  done_.at(rank) = std::move(done);
  return absl::OkStatus();
}

absl::Status Verification::CheckGradients(const VerifyDone& done) const {
  const bool compared = done.reuse().yes() && done.dense().yes();
  if (!compared && !done.gradients().empty()) {
    return absl::InvalidArgumentError("verify_done.gradients are told, and a run has none");
  }
  std::set<std::string_view> names;
  for (const internal::v1::GradientError& gradient : done.gradients()) {
    if (!names.insert(gradient.name()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("verify_done.gradients has ", WorkerText(gradient.name()), " twice"));
    }
  }
  // Fused tensors have one name: there are fewer of them.
  const size_t tensors = names.empty() ? 0 : ModelTensors(model_).size();
  if (names.size() <= tensors) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("verify_done.gradients has ", names.size(), " names, the model ", tensors, " tensors"));
}

std::vector<Vote> Verification::Votes(VoteOf vote) const {
  std::vector<Vote> votes;
  for (const VerifyDone& done : done_) votes.push_back((done.*vote)());
  return votes;
}

// `run`: in words.
absl::Status Verification::RunProblem(const Vote& vote, const char* run) const {
  if (vote.yes()) return absl::OkStatus();
  if (vote.no_reason() != internal::v1::NONFINITE) return NoVoteError(vote);
  return MakeError(
      Reason::kNonfiniteGradient,
      absl::StrCat(run, ": the gradient is not finite: ", WorkerText(vote.message()), "; there is nothing to compare"));
}

void Verification::AddParameters(v1::VerifyGroupResponse& response) const {
  std::map<std::string, internal::v1::GradientError> sums;
  double error = 0, dense = 0;
  for (const VerifyDone& done : done_) {
    for (const internal::v1::GradientError& part : done.gradients()) {
      internal::v1::GradientError& sum = sums[part.name()];
      sum.set_error_squared(sum.error_squared() + part.error_squared());
      sum.set_dense_squared(sum.dense_squared() + part.dense_squared());
      error += part.error_squared();
      dense += part.dense_squared();
    }
  }
  response.set_error_norm(std::sqrt(error));
  response.set_gradient_norm(std::sqrt(dense));
  for (const auto& [name, sum] : sums) {
    v1::ParameterError& parameter = *response.add_parameters();
    parameter.set_name(name);
    parameter.set_error_norm(std::sqrt(sum.error_squared()));
    parameter.set_gradient_norm(std::sqrt(sum.dense_squared()));
  }
  std::stable_sort(response.mutable_parameters()->begin(), response.mutable_parameters()->end(),
                   [](const auto& a, const auto& b) { return a.error_norm() > b.error_norm(); });
}

absl::StatusOr<v1::VerifyGroupResponse> Verification::Answer() const {
  const std::vector<Vote> reuse = Votes(&VerifyDone::reuse), dense = Votes(&VerifyDone::dense);
  RETURN_IF_ERROR(RunProblem(MergeVotes(reuse), "with shared prompts"));
  RETURN_IF_ERROR(RunProblem(MergeVotes(dense), "dense"));
  RETURN_IF_ERROR(errors_.CheckAllCame());
  double reuse_s = 0, dense_s = 0;
  for (const VerifyDone& done : done_) {
    reuse_s = std::max(reuse_s, done.reuse_s());
    dense_s = std::max(dense_s, done.dense_s());
  }
  v1::VerifyGroupResponse response;
  SetRunMetrics(request_->update, *plan_, reuse, mesh_, reuse_s, *response.mutable_reuse()->mutable_metrics());
  SetRunMetrics(request_->update, *plan_->dense, dense, mesh_, dense_s, *response.mutable_dense()->mutable_metrics());
  response.set_log_prob_error_max(errors_.max());
  response.set_log_prob_error_mean(errors_.mean());
  response.set_log_prob_tokens(errors_.tokens());
  AddParameters(response);
  return response;
}

}  // namespace stemma::server
