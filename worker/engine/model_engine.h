// The Engine on a real model. See engine.h for the contract. Tests construct it with another backend or a
// copy engine of their own (null: the backend's), and read its weights and gradients.
//
// With several data-parallel ranks each computes its groups of a step and owns a part of the optimizer's states
// (worker/optim/shards.h). Those of a tensor-parallel axis hold one copy of the model together and compute the same
// groups; the first of them speaks for the copy. The stages of a pipeline hold some of its layers each; the last of
// them speaks. Those of a context-parallel axis compute the same groups, too, each some rows of their prefixes and some
// of their rollouts, for which it speaks. The collectives of a step are, in this order: in Prepare, the copy's
// agreement to begin; those inside of the layers (worker/ops/tensor_parallel.h, worker/model/context_hot_sets.h); the
// exchanges of split groups between the phases (worker/engine/split_exchange.h); the reduction of gradients, from the
// last backward on; an agreement on whether every rank could; in Apply, after AdamW, the gathering of weights. A rank
// that fails in a phase walks the exchanges that are left and the reduction, comes to the agreement, and all of them
// vote no: what was summed is dropped. Those of an export: worker/engine/rank_export.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/model/model_directory.h"
#include "worker/checkpoint/checkpoint_saver.h"
#include "worker/engine/copy_totals.h"
#include "worker/engine/engine.h"
#include "worker/engine/fence/step_fence.h"
#include "worker/engine/partial_gradients.h"
#include "worker/engine/pass_runner.h"
#include "worker/engine/payload.h"
#include "worker/engine/step_spans.h"
#include "worker/memory/copy_engine.h"
#include "worker/memory/host_arena.h"
#include "worker/model/sharded_units.h"
#include "worker/model/weights.h"
#include "worker/model/weights_digest.h"
#include "worker/optim/shard_exchange.h"
#include "worker/parallel/mesh_ranks.h"

namespace stemma::worker {

// What an engine is made with beside its backend.
struct EngineParts {
  std::unique_ptr<CopyEngine> copy_engine = nullptr;  // null: the backend's
  std::unique_ptr<PageLock> page_lock = nullptr;      // the same
  std::string device_name = "";                       // of the hardware, for Ready
  MeshRanks ranks = OnlyRank();
  google::protobuf::RepeatedPtrField<v1::LinkInfo> links = {};  // that were measured between them, for Ready
  // Null: over ranks.tp. Tests give one with a known mistake.
  std::unique_ptr<TensorParallel> tensor_parallel = nullptr;
  std::unique_ptr<StageLinks> stages = nullptr;  // the same, over ranks.pp
  int64_t bucket_elements = kBucketElements;
};

class ModelEngine final : public Engine {
 public:
  static absl::StatusOr<std::unique_ptr<ModelEngine>> Create(const internal::v1::Configure& configure,
                                                             const std::string& incarnation, Backend backend,
                                                             EngineParts parts = {});

  const internal::v1::Ready& ready() const override { return ready_; }
  absl::Status AddPayload(internal::v1::PayloadChunk chunk) override { return payloads_.Add(std::move(chunk)); }
  void DropPayload(const std::string& id) override { payloads_.Drop(id); }
  absl::StatusOr<internal::v1::Vote> Prepare(const internal::v1::Prepare& prepare, const EngineHooks& hooks) override;
  absl::StatusOr<internal::v1::Applied> Apply(const internal::v1::Apply& apply) override;
  void Abort(const internal::v1::StepKey& key) override;
  absl::Status LogProb(const internal::v1::LogProb& log_prob, const EngineHooks& hooks) override;
  absl::StatusOr<internal::v1::VerifyDone> Verify(const internal::v1::Verify& verify,
                                                  const EngineHooks& hooks) override;
  absl::StatusOr<uint64_t> Export(const internal::v1::Export& request) override;
  absl::Status Save(const internal::v1::Save& request, const SaveAnswers& answers) override;

  const Weights& weights() const { return weights_; }

 private:
  struct Loaded {
    ModelDirectory directory;
    Weights weights;
  };
  // A forward-only pass: what it computes with the weights that it asks for.
  struct ForwardPass {
    const internal::v1::PassWeights& weights;
    const v1::StepPlan& plan;
    LogProbOptions log_prob;
    const MemberResult& results;
  };

  ModelEngine(const internal::v1::Configure& configure, const std::string& incarnation, Backend backend, Loaded loaded,
              EngineParts parts);

  // Host memory, from the first plan on that offloads.
  absl::Status PrepareOffload(const v1::StepPlan& plan);
  // Puts into Ready what the server compares with its own and with other ranks': the model's configuration, its files'
  // fingerprint, and where there is anything to differ from the weights' digest.
  absl::Status TellModel();
  PassOptions MakePassOptions(const EngineHooks& hooks) const;
  PassOptions StepOptions(const EngineHooks& hooks) const;  // records what the step asks for
  // Everything of a step before its phases, its entry pass too.
  absl::StatusOr<LossPlan> BeforePhases(Payload& payload, const internal::v1::Prepare& prepare,
                                        const EngineHooks& hooks);
  // Runs a pass; its weights are here while it runs. `before`: where it is not OK, the pass does not begin, and its
  // exchanges are walked all the same, as they are where the weights cannot be read.
  absl::Status RunPass(absl::Status before, const ForwardPass& pass, PassOptions options, const Payload& payload) const;
  absl::StatusOr<internal::v1::Vote> RunPhases(Payload& payload, const internal::v1::Prepare& prepare,
                                               const EngineHooks& hooks, const LayerFinal& layer_final);
  // Runs the phases, sums the gradients over the ranks and votes, with a reason where this rank or another could not.
  // Errors: Unavailable - a rank is gone.
  absl::StatusOr<internal::v1::Vote> VoteWithOthers(Payload& payload, const internal::v1::Prepare& prepare,
                                                    const EngineHooks& hooks);
  // Steps what this rank owns and brings it the weights of the others, with the digest where it is asked for.
  // `start_s`: when APPLY began. `spans`: null where the step is not traced.
  absl::Status StepWeights(const internal::v1::Apply& apply, double start_s, StepSpans* spans,
                           internal::v1::Applied& applied);
  void PassFailpoint(std::string_view place) const;
  absl::Status PassCollective(std::string_view place) const;  // Unavailable: a test lets it fail
  // Whether this rank speaks for its copy of the model: results, and sums over rollouts.
  bool speaks() const { return ranks_.tp->rank() == 0 && ranks_.copy().is_last_stage(); }
  // The ranks that begin and stop together.
  CopyRanks together() const;
  DigestRanks digest_ranks() const { return {*ranks_.tp, *ranks_.pp, *ranks_.data}; }
  // Whether all ranks of the mesh could. Errors: Unavailable.
  absl::StatusOr<bool> AllRanksCan(bool this_one);
  // The gradient's norm and whether it is finite, of what this rank owns.
  absl::Status CheckGradients(internal::v1::Vote& vote) const;

  const internal::v1::Configure configure_;
  const Backend backend_;
  const std::unique_ptr<PageLock> page_lock_;  // of host memory that copies reach; null: none is needed
  const ModelDirectory directory_;
  Weights weights_;
  const MeshRanks ranks_;
  const std::unique_ptr<TensorParallel> tensor_parallel_;  // null: this rank holds whole layers
  const std::unique_ptr<StageLinks> stages_;               // null: it holds all of them
  const OptimizerShards shards_;
  PartialGradients partial_;
  std::unique_ptr<ShardExchange> exchange_;  // null: parameters are sharded
  std::unique_ptr<ShardedUnits> units_;      // null: they are whole
  const ParameterRanges norm_ranges_;        // that this rank counts in the gradient norm, of what it owns
  RopeTable rope_;
  std::unique_ptr<HostArena> host_;
  std::unique_ptr<CopyEngine> copy_engine_;
  StepFence fence_;
  PayloadStore payloads_;
  CopyTotals exchanged_before_;       // behind the pass for log-probs of the step that runs
  std::shared_ptr<StepSpans> spans_;  // of the attempt that runs, from its Prepare to its Apply; null: not asked for
  internal::v1::Ready ready_;
  CheckpointSaver saver_;  // reads weights_ and directory_ until it has ended
};

}  // namespace stemma::worker
