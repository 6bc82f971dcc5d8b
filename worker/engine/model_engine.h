// The Engine on a real model. See engine.h for the contract. Tests construct it with another backend or a
// copy engine of their own (null: the backend's), and read its weights and gradients.
#pragma once

#include <memory>
#include <string>

#include "common/model/model_directory.h"
#include "worker/engine/engine.h"
#include "worker/engine/fence/step_fence.h"
#include "worker/engine/pass_runner.h"
#include "worker/engine/payload.h"
#include "worker/memory/copy_engine.h"
#include "worker/memory/host_arena.h"
#include "worker/model/weights.h"

namespace stemma::worker {

class ModelEngine final : public Engine {
 public:
  static absl::StatusOr<std::unique_ptr<ModelEngine>> Create(const internal::v1::Configure& configure,
                                                             const std::string& incarnation, Backend backend,
                                                             std::unique_ptr<CopyEngine> copies = nullptr);

  const internal::v1::Ready& ready() const override { return ready_; }
  absl::Status AddPayload(internal::v1::PayloadChunk chunk) override { return payloads_.Add(std::move(chunk)); }
  void DropPayload(const std::string& id) override { payloads_.Drop(id); }
  absl::StatusOr<internal::v1::Vote> Prepare(const internal::v1::Prepare& prepare, const EngineHooks& hooks) override;
  absl::StatusOr<internal::v1::Applied> Apply(const internal::v1::Apply& apply) override;
  void Abort(const internal::v1::StepKey& key) override;
  absl::Status LogProb(const internal::v1::LogProb& log_prob, const EngineHooks& hooks) override;
  absl::StatusOr<uint64_t> Export(const internal::v1::Export& request) override;

  const Weights& weights() const { return weights_; }

 private:
  ModelEngine(const internal::v1::Configure& configure, const std::string& incarnation, Backend backend,
              ModelDirectory directory, Weights weights, std::unique_ptr<CopyEngine> copies);

  // Host memory, from the first plan on that offloads.
  absl::Status PrepareOffload(const v1::StepPlan& plan);
  PassOptions MakePassOptions(const EngineHooks& hooks) const;
  absl::Status ComputeEntryLogProbs(Payload& payload, const internal::v1::Prepare& prepare, const EngineHooks& hooks);
  absl::StatusOr<internal::v1::Vote> RunPhases(Payload& payload, const internal::v1::Prepare& prepare,
                                               const EngineHooks& hooks);

  const internal::v1::Configure configure_;
  const Backend backend_;
  const ModelDirectory directory_;
  Weights weights_;
  const ParameterRanges ranges_;       // that this engine steps: all
  const ParameterRanges norm_ranges_;  // that it counts in the gradient norm
  RopeTable rope_;
  std::unique_ptr<HostArena> host_;
  std::unique_ptr<CopyEngine> copies_;
  StepFence fence_;
  PayloadStore payloads_;
  internal::v1::Ready ready_;
};

}  // namespace stemma::worker
