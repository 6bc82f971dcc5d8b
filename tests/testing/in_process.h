// The whole numeric path in one process, without gRPC: request -> plan (the server's planner) -> engine messages ->
// vote. Used by the parity probe and the benchmarks. The ranks of a mesh (run.mesh) are threads, each with an engine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/admission/training_request.h"
#include "common/base/mesh.h"
#include "common/base/mutex.h"
#include "common/cost/state_bytes.h"
#include "common/model/model_tensors.h"
#include "server/protocol/request_plan.h"
#include "tests/testing/draw_context.h"
#include "tests/testing/draw_splits.h"
#include "tests/testing/namespaces.h"
#include "worker/engine/model_engine.h"
#include "worker/parallel/communicator.h"

namespace stemma::testing {

struct InProcessOptions {
  v1::RunConfig run;  // model, dtype, schedule, layout, wave_suffixes, head_chunk_tokens, memory_budget_bytes
  int64_t machine_bytes = int64_t{64} << 30;  // that the planner believes in
  bool cluster_per_group = false;
  std::function<void(v1::StepPlan&)> edit_step, edit_entry_pass;  // what the planner would not choose
  std::function<void(const internal::v1::Heartbeat&)> progress = [](const internal::v1::Heartbeat&) {};
  std::string data_directory;   // of exports and checkpoints
  std::string checkpoint;       // that is loaded; empty: the weights of the model
  uint64_t step = 0;            // that the weights are at
  uint32_t placement_seed = 0;  // draws which rank computes which group, some may have none; 0: the planner's
  int64_t bucket_elements = kBucketElements;  // of the reduction between ranks
  SplitDraw split;                            // draws groups to be split over ranks, over the placement; seed 0: none
  ContextDraw context;  // draws what context-parallel ranks run, after that; seed 0: the planner's
  uint32_t stage_seed =
      0;  // draws the orders of a pipeline's stages, after that; 0: the planner's where its plan is kept
  // Changes what a rank's engine calls between waves.
  std::function<void(int rank, EngineHooks& hooks)> edit_hooks = [](int, EngineHooks&) {};
  // Changes what a rank is sent of a step.
  std::function<void(int rank, internal::v1::Prepare& prepare)> edit_prepare = [](int, internal::v1::Prepare&) {};
  // Replaces the communicators of each rank's dp axis, of cp, of pp, or of tp and kv, by ones with a known mistake.
  using EditCommunicator = std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>)>;
  EditCommunicator edit_communicator, edit_cp_communicator, edit_pp_communicator, edit_tp_communicator;
  // One rank of the mesh's pp, cp and tp axes is made, which hears no other: tests/testing/lone_rank.h.
  bool lone_rank = false;
  int lone_cp_rank = 0, lone_pp_rank = 0;
  int lone_tp_rank = -1;  // -1: the last
  // Adds to the first token of each rank's part of the vocabulary.
  int64_t vocabulary_shift = 0;
  // Makes what a rank's layers exchange, with a known mistake.
  std::function<std::unique_ptr<TensorParallel>(Communicator& tp)> make_tensor_parallel;
};

class InProcess {
 public:
  static absl::StatusOr<std::unique_ptr<InProcess>> Create(const InProcessOptions& options, Backend backend,
                                                           std::unique_ptr<CopyEngine> copies = nullptr);

  // Plans a request and hands its payload to the engine; replaces the last one.
  absl::Status Load(TrainingRequest request);
  const RequestPlan& plan() const { return plan_; }
  const v1::RunConfig& run() const { return options_.run; }  // divided

  // Phases A, B, C of step k of the loaded request; log-probs and entropies are kept.
  // Returns what all ranks say together.
  absl::StatusOr<internal::v1::Vote> Prepare(int k);
  // Both runs of the loaded verification, as the server asks for them and answers. REQUIRES: a request of that kind.
  absl::StatusOr<v1::VerifyGroupResponse> Verify();
  // Clip by the request's max_grad_norm, AdamW.
  absl::Status Apply(int k, const internal::v1::Vote& vote);

  ModelEngine& engine(int rank = 0) const { return *engines_[static_cast<size_t>(rank)]; }
  const Weights& weights(int rank = 0) const { return engines_[static_cast<size_t>(rank)]->weights(); }
  // The step's gradient of a parameter of a rank of the first copy, each element from the rank that owns it. `part`: of
  // the parts that its model is cut into, stage by stage those of the tensor-parallel ranks.
  at::Tensor Gradient(int parameter, int part = 0) const;
  // Its master, of the first copy; of sharded parameters, each element from the rank that owns it.
  at::Tensor Master(int parameter, int part = 0) const;
  // A whole Hugging Face tensor, put together from the ranks' boxes: the step's gradient, or the master of the first
  // copy. Errors: Internal - ranks that hold the same box have other bits.
  absl::StatusOr<at::Tensor> HfGradient(const TensorSpec& tensor) const;
  absl::StatusOr<at::Tensor> HfMaster(const TensorSpec& tensor) const;
  const ModelConfig& model() const { return model_; }  // the whole one
  // The votes behind the last Prepare.
  const std::vector<internal::v1::Vote>& votes() const { return votes_; }
  const std::map<std::string, v1::RolloutResult>& results() const { return results_; }

 private:
  InProcess(const InProcessOptions& options, const ModelConfig& model,
            std::vector<std::unique_ptr<ModelEngine>> engines);
  internal::v1::StepKey Key(int k) const;
  int num_ranks() const { return static_cast<int>(engines_.size()); }
  int num_copies() const { return static_cast<int>(DpSize(options_.run.mesh())); }
  int data_ranks() const { return static_cast<int>(DataRanks(options_.run.mesh())); }
  bool sharded() const { return ShardsParameters(options_.run); }
  int num_parts() const { return static_cast<int>(TpSize(options_.run.mesh()) * PpSize(options_.run.mesh())); }
  // Returns the rank that has a part, and of the ranks that hold it the one with this rank among them.
  int RankOf(int part, int data_rank = 0) const;
  // Puts a parameter together, each element from the rank that owns it.
  using ElementsOfParameter = at::Tensor (Parameter::*)(int64_t begin, int64_t count) const;
  at::Tensor FromOwners(int parameter, int part, ElementsOfParameter elements) const;
  absl::StatusOr<at::Tensor> Assemble(const TensorSpec& tensor,
                                      const std::function<at::Tensor(int part, const HfTensor& of)>& box_of) const;
  // Returns what each rank is to compute of step k by a plan.
  std::vector<internal::v1::Prepare> PreparesBy(const RequestPlan& plan, int k) const;
  void EditPlan(const TrainingRequest& request);
  void EditStep(const TrainingRequest& request, v1::StepPlan& step) const;
  void DrawPlacement(size_t num_groups);
  absl::Status OnEachRank(const std::function<absl::Status(int rank)>& run) const;
  EngineHooks Hooks(int rank);

  const InProcessOptions options_;
  const ModelConfig model_;
  const PlanFunction make_plan_;
  std::vector<std::unique_ptr<ModelEngine>> engines_;  // by rank
  std::vector<int64_t> num_rollouts_;                  // by group of the request
  std::vector<internal::v1::Vote> votes_;              // by rank
  TrainingRequest request_;                            // without its groups, which the engine holds
  std::shared_ptr<const TrainingRequest> verified_;    // with them; null: it is no verification
  RequestPlan plan_;
  Mutex results_mutex_;
  std::map<std::string, v1::RolloutResult> results_;
  int requests_ = 0;
  uint64_t step_ = 0;
  uint32_t attempt_ = 0;
};

}  // namespace stemma::testing
