// The whole numeric path in one process, without gRPC: request -> plan (the server's planner) -> engine messages ->
// vote. Used by the parity probe and the benchmarks.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/admission/training_request.h"
#include "server/protocol/request_plan.h"
#include "tests/testing/namespaces.h"
#include "worker/engine/model_engine.h"

namespace stemma::testing {

struct InProcessOptions {
  v1::RunConfig run;  // model, dtype, schedule, layout, wave_suffixes, head_chunk_tokens, memory_budget_bytes
  bool cluster_per_group = false;
  std::function<void(v1::StepPlan&)> edit_step, edit_entry_pass;  // what the planner would not choose
  std::function<void(const internal::v1::Heartbeat&)> progress = [](const internal::v1::Heartbeat&) {};
};

class InProcess {
 public:
  static absl::StatusOr<std::unique_ptr<InProcess>> Create(const InProcessOptions& options, Backend backend,
                                                           std::unique_ptr<CopyEngine> copies = nullptr);

  // Plans a request and hands its payload to the engine; replaces the last one.
  absl::Status Load(TrainingRequest request);
  const RequestPlan& plan() const { return plan_; }

  // Phases A, B, C of step k of the loaded request; log-probs and entropies are kept.
  absl::StatusOr<internal::v1::Vote> Prepare(int k);
  // Clip by the request's max_grad_norm, AdamW.
  absl::Status Apply(int k, const internal::v1::Vote& vote);

  const Weights& weights() const { return engine_->weights(); }
  const std::map<std::string, v1::RolloutResult>& results() const { return results_; }

 private:
  InProcess(const InProcessOptions& options, const ModelConfig& model, std::unique_ptr<ModelEngine> engine);
  internal::v1::StepKey Key(int k) const;

  const InProcessOptions options_;
  const PlanFunction make_plan_;
  std::unique_ptr<ModelEngine> engine_;
  TrainingRequest request_;  // without its groups, which the engine holds
  RequestPlan plan_;
  std::map<std::string, v1::RolloutResult> results_;
  int requests_ = 0;
  uint64_t step_ = 0;
  uint32_t attempt_ = 0;
};

}  // namespace stemma::testing
