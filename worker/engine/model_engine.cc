#include "worker/engine/model_engine.h"

#include <ATen/Parallel.h>
#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "common/cost/rank_shape.h"
#include "common/cost/state_bytes.h"
#include "common/model/model_fingerprint.h"
#include "common/model/model_init.h"
#include "common/trace/loss_names.h"
#include "worker/engine/copy_agreement.h"
#include "worker/engine/copy_totals.h"
#include "worker/engine/device_report.h"
#include "worker/engine/entry_log_probs.h"
#include "worker/engine/exceptions.h"
#include "worker/engine/load_state.h"
#include "worker/engine/no_vote.h"
#include "worker/engine/observed_call.h"
#include "worker/engine/rank_export.h"
#include "worker/engine/results.h"
#include "worker/engine/step_line.h"
#include "worker/engine/step_reduction.h"
#include "worker/engine/step_sums.h"
#include "worker/engine/verification.h"
#include "worker/engine/weights_of_pass.h"
#include "worker/model/weights_digest.h"
#include "worker/model/weights_io.h"

namespace stemma::worker {
namespace {

using internal::v1::Vote;

// Where parameters are sharded, a rank has clusters of which it runs nothing.
bool RunsNothing(const v1::StepPlan& plan) {
  return std::ranges::all_of(plan.clusters(), [](const v1::Cluster& cluster) { return cluster.waves().empty(); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelEngine>> ModelEngine::Create(const internal::v1::Configure& configure,
                                                                 const std::string& incarnation, Backend backend,
                                                                 EngineParts parts) {
  if (configure.config().threads() > 0) at::set_num_threads(static_cast<int>(configure.config().threads()));
  ASSIGN_OR_RETURN(ModelDirectory directory, OpenModelDirectory(configure.config().model()));
  ASSIGN_OR_RETURN(const at::ScalarType dtype, ParseRunDtype(configure.config().dtype()));
  const Communicator &tp = *parts.ranks.tp, &pp = *parts.ranks.pp;
  ASSIGN_OR_RETURN(const ModelShard shard, MakeModelShard(directory.config, {tp.rank(), tp.size(), pp.rank(), pp.size(),
                                                                             EpSize(configure.config().mesh())}));
  if (parts.page_lock == nullptr && backend.make_page_lock != nullptr) parts.page_lock = backend.make_page_lock();
  Weights weights;
  RETURN_IF_ERROR(CatchExceptions([&]() -> absl::Status {
    const ParameterOwners owners = {parts.ranks.data->rank(), parts.ranks.data->size(),
                                    ShardsParameters(configure.config())};
    const StateOptions states = {configure.config().optimizer_residency(), owners, parts.page_lock.get()};
    ASSIGN_OR_RETURN(weights, LoadState(configure, directory, shard, dtype, backend.device, states));
    if (parts.copy_engine == nullptr) parts.copy_engine = backend.make_copy_engine();
    return absl::OkStatus();
  }));
  if (parts.tensor_parallel == nullptr && tp.size() > 1) {
    parts.tensor_parallel = std::make_unique<RankTensorParallel>(*parts.ranks.tp);
  }
  if (parts.stages == nullptr && pp.size() > 1) parts.stages = std::make_unique<RankStageLinks>(*parts.ranks.pp);
  std::unique_ptr<ModelEngine> engine;
  RETURN_IF_ERROR(CatchExceptions([&] {
    engine.reset(new ModelEngine(configure, incarnation, std::move(backend), {std::move(directory), std::move(weights)},
                                 std::move(parts)));
    return engine->TellModel();
  }));
  return engine;
}

ModelEngine::ModelEngine(const internal::v1::Configure& configure, const std::string& incarnation, Backend backend,
                         Loaded loaded, EngineParts parts)
    : configure_(configure),
      backend_(std::move(backend)),
      page_lock_(std::move(parts.page_lock)),
      directory_(std::move(loaded.directory)),
      weights_(std::move(loaded.weights)),
      ranks_(std::move(parts.ranks)),
      tensor_parallel_(std::move(parts.tensor_parallel)),
      stages_(std::move(parts.stages)),
      shards_(ShardsOf(weights_, ranks_.data->size(), parts.bucket_elements)),
      partial_(weights_, ranks_),
      exchange_(weights_.is_sharded() ? nullptr
                                      : std::make_unique<ShardExchange>(*ranks_.data, shards_, weights_.parameters,
                                                                        backend_.make_side_queue())),
      units_(weights_.is_sharded() ? std::make_unique<ShardedUnits>(*ranks_.data, weights_) : nullptr),
      norm_ranges_(Intersect(NormRanges(weights_), shards_.owned(ranks_.data->rank()))),
      rope_(MakeRopeTable(weights_.config, weights_.config.max_positions, weights_.run_dtype, backend_.device)),
      copy_engine_(std::move(parts.copy_engine)),
      fence_({configure.epoch(), configure.generation(), incarnation, configure.step()}),
      saver_(weights_, directory_, shards_.owned(ranks_.data->rank()),
             {.checkpoints = CheckpointsFolder(configure),
              .rank = static_cast<uint32_t>(ranks_.mesh_rank()),
              .ranks_of_memory = std::max<int64_t>(configure.ranks_of_host(), 1)}) {
  *ready_.mutable_config() = configure.config();
  ready_.mutable_config()->set_threads(static_cast<uint32_t>(at::get_num_threads()));
  *ready_.mutable_links() = std::move(parts.links);
  SetDeviceFields(backend_, parts.device_name, ready_);
}

CopyRanks ModelEngine::together() const {
  CopyRanks ranks = ranks_.copy();
  if (units_ != nullptr) ranks.shards = ranks_.data.get();
  return ranks;
}

absl::Status ModelEngine::TellModel() {
  ready_.set_model_config(ModelConfigJson(directory_.config));
  if (configure_.checkpoint().empty()) {
    ASSIGN_OR_RETURN(*ready_.mutable_model_files(), ModelFingerprint(directory_));
  }
  // Alone, and with nothing kept, there is nobody to differ from.
  const bool compared =
      ranks_.size() > 1 || configure_.config().durability() == v1::REPLAY || !configure_.checkpoint().empty();
  if (!compared) return absl::OkStatus();
  ASSIGN_OR_RETURN(*ready_.mutable_model_digest(), MeshDigest(weights_, backend_.kernels, digest_ranks()));
  return absl::OkStatus();
}

PassOptions ModelEngine::MakePassOptions(const EngineHooks& hooks) const {
  const TensorParallel& tensor_parallel = tensor_parallel_ != nullptr ? *tensor_parallel_ : WholeLayers();
  Communicator* const cp = ranks_.cp->size() > 1 ? ranks_.cp.get() : nullptr;
  StageLinks* const stages = stages_ != nullptr ? stages_.get() : &OnlyStage();
  PassOptions options = {.context = {&backend_, &weights_, &rope_, &tensor_parallel, cp, stages},
                         .host = host_.get(),
                         .copy_engine = copy_engine_.get(),
                         .head_chunk_rows = HeadChunkRows(configure_.config()),
                         .hooks = &hooks,
                         .data = ranks_.data.get(),
                         .copy = together()};
  options.UseUnits(units_.get());
  return options;
}

PassOptions ModelEngine::StepOptions(const EngineHooks& hooks) const {
  PassOptions options = MakePassOptions(hooks);
  options.spans = spans_.get();
  return options;
}

absl::Status ModelEngine::RunPass(absl::Status before, const ForwardPass& pass, PassOptions options,
                                  const Payload& payload) const {
  WeightsOfPass of_pass(configure_, pass.weights, weights_, backend_, ranks_);
  if (before.ok()) before = CatchExceptions([&] { return of_pass.Read(); });
  before = AgreeInCopy(together(), "pass", before);
  if (before.ok()) {  // the same answer on every rank of the copy
    before = InsideCopy(together(), CatchExceptions([&] { return of_pass.CheckDigest(); }));
  }
  if (!before.ok()) return AbandonPass(options, payload, pass.plan, /*forward_only=*/true, before);
  of_pass.Use(options);
  return RunLogProb(options, payload, pass.plan, pass.log_prob, pass.results).status();
}

absl::Status ModelEngine::PrepareOffload(const v1::StepPlan& plan) {
  const bool offloads = std::any_of(plan.clusters().begin(), plan.clusters().end(),
                                    [](const v1::Cluster& cluster) { return cluster.offload_prefix(); });
  if (!offloads || host_ != nullptr) return absl::OkStatus();
  auto host = HostArena::Create(HostTapeBytesMax(directory_.config, configure_.config()), page_lock_.get());
  // Its size is the configuration's: whoever heard that memory is out would send smaller groups, which need as much.
  if (absl::IsResourceExhausted(host.status())) return absl::InternalError(host.status().message());
  ASSIGN_OR_RETURN(host_, std::move(host));
  return absl::OkStatus();
}

absl::StatusOr<LossPlan> ModelEngine::BeforePhases(Payload& payload, const internal::v1::Prepare& prepare,
                                                   const EngineHooks& hooks) {
  const RunEntryPass run = [&](absl::Status before, const internal::v1::PassWeights& weights,
                               const MemberResult& results) {
    const v1::LossConfig& loss = prepare.header().loss();
    const absl::StatusOr<LossMode> mode = ParseLossMode(loss.loss_mode());  // the loss plan says what is wrong with it
    const LogProbOptions log_prob = {loss.temperature(), /*entropy=*/false, mode.ok() && NeedsWholeRollouts(*mode)};
    return RunPass(std::move(before), {weights, prepare.log_prob_pass(), log_prob, results}, StepOptions(hooks),
                   payload);
  };
  // First: it has exchanges of its own, which it walks whatever happens.
  const CopyRanks copy = together();
  RETURN_IF_ERROR(ComputeEntryLogProbs(prepare, {*ranks_.cp, copy, copy.is_last_stage()}, run, payload));
  exchanged_before_ = ReadCopyTotals(ranks_);  // the pass is no part of the step, as in its seconds and FLOPs
  RETURN_IF_ERROR(PrepareOffload(prepare.plan()));
  std::vector<int64_t> rollouts;
  for (const v1::PromptGroup& group : payload.groups) rollouts.push_back(group.rollouts_size());
  ASSIGN_OR_RETURN(LossPlan loss, MakeLossPlan(prepare, rollouts));
  const TimedSpan span(spans_.get(), v1::StepSpan::ZERO_GRADIENTS);
  ZeroGradients(weights_.parameters);
  return loss;
}

absl::StatusOr<Vote> ModelEngine::RunPhases(Payload& payload, const internal::v1::Prepare& prepare,
                                            const EngineHooks& hooks, const LayerFinal& layer_final) {
  Vote vote;
  const int64_t state_bytes = backend_.memory_stats().current_bytes;
  LossPlan loss;
  absl::Status before = CatchExceptions([&]() -> absl::Status {
    ASSIGN_OR_RETURN(loss, BeforePhases(payload, prepare, hooks));
    return absl::OkStatus();
  });
  before = AgreeInCopy(together(), "phases", before);
  if (!before.ok()) {
    return AbandonPass(MakePassOptions(hooks), payload, prepare.plan(), /*forward_only=*/false, before);
  }

  const bool report = speaks() && prepare.header().return_log_probs() && prepare.plan().epoch() == 0;
  ResultSender sender(prepare.key().request_id(), weights_.run_dtype == at::kDouble, hooks.results);
  const MemberResult results = SendResults(report ? &sender : nullptr, payload);
  PassOptions options = StepOptions(hooks);
  options.layer_final = layer_final;
  ASSIGN_OR_RETURN(const PassSums sums, RunStep(options, payload, prepare.plan(), loss, results));
  *vote.mutable_sums() = StepSumsOf(sums);
  AddExpertLoad(sums.expert_load, weights_.shard.layer_begin, vote);
  vote.mutable_sums()->set_state_bytes(static_cast<uint64_t>(state_bytes));
  vote.mutable_sums()->set_log_probs_s(payload.log_probs_s);
  LOG(INFO) << StepLine(prepare.key(), sums);
  for (const std::string& line : SlowPhases(prepare.key(), sums, prepare.predicted())) LOG(WARNING) << line;
  if (const std::string kept = KeptLine(prepare.key(), sums); !kept.empty()) LOG(WARNING) << kept;
  sender.Flush();
  vote.set_empty(RunsNothing(prepare.plan()));
  return vote;
}

absl::Status ModelEngine::PassCollective(std::string_view place) const {
  if (!FailpointFails(place, static_cast<uint32_t>(ranks_.mesh_rank()))) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("a test lets ", std::string(place), " fail"));
}

void ModelEngine::PassFailpoint(std::string_view place) const {
  Failpoint(place, static_cast<uint32_t>(ranks_.mesh_rank()));
}

absl::StatusOr<bool> ModelEngine::AllRanksCan(bool this_one) {
  int64_t cannot = this_one ? 0 : 1;
  RETURN_IF_ERROR(ranks_.Agree("step", {&cannot, 1}));
  return cannot == 0;
}

absl::Status ModelEngine::CheckGradients(Vote& vote) const {
  const TimedSpan span(spans_.get(), v1::StepSpan::GRADIENT_NORM);
  return CatchExceptions([&] {
    vote.set_grad_norm_squared(GradNormSquared(backend_, weights_.parameters, norm_ranges_));
    vote.set_yes(std::isfinite(vote.grad_norm_squared()));
    if (vote.yes()) return absl::OkStatus();
    vote.set_no_reason(internal::v1::NONFINITE);
    vote.set_message(NonfiniteNormText(backend_, weights_.parameters, norm_ranges_));
    return absl::OkStatus();
  });
}

absl::StatusOr<Vote> ModelEngine::VoteWithOthers(Payload& payload, const internal::v1::Prepare& prepare,
                                                 const EngineHooks& hooks) {
  Vote vote;
  StepReduction reduction(exchange_.get(), partial_, weights_, *ranks_.data);
  absl::Status status = CatchExceptions([&]() -> absl::Status {
    ASSIGN_OR_RETURN(vote, RunPhases(payload, prepare, hooks, reduction.layer_final()));
    return absl::OkStatus();
  });
  if (absl::IsUnavailable(status)) return status;
  // A rank that failed goes on to the agreement: the others wait for it in the reduction.
  reduction.PassHasEnded();
  RETURN_IF_ERROR(PassCollective("prepare.in_reduce"));
  RETURN_IF_ERROR(reduction.Finish());
  PassFailpoint("prepare.before_agree");
  const double agree_start_s = RealClock().MonotonicSeconds();
  ASSIGN_OR_RETURN(const bool all_can, AllRanksCan(status.ok()));
  const double agree_end_s = RealClock().MonotonicSeconds();
  if (!status.ok()) return NoVote(status);
  if (!all_can) return NoVote(absl::AbortedError("another rank could not"));
  reduction.Describe(*vote.mutable_sums(), spans_.get());
  SetExchanged(exchanged_before_, ReadCopyTotals(ranks_), *vote.mutable_sums());
  if (ranks_.size() > 1) {
    vote.mutable_sums()->set_agree_s(agree_end_s - agree_start_s);
    if (spans_ != nullptr) spans_->AddAgreement(agree_start_s, agree_end_s);
  }
  if (status = CheckGradients(vote); absl::IsUnavailable(status)) return status;
  return status.ok() ? vote : NoVote(status);
}

absl::StatusOr<Vote> ModelEngine::Prepare(const internal::v1::Prepare& prepare, const EngineHooks& hooks) {
  RETURN_IF_ERROR(fence_.CheckPrepare(prepare.key()));
  ASSIGN_OR_RETURN(Payload* const payload, payloads_.FindComplete(prepare.key().request_id()));
  fence_.OnPrepare(prepare.key());
  const double start_s = RealClock().MonotonicSeconds();
  spans_ = prepare.trace_spans_max() > 0 ? std::make_shared<StepSpans>(start_s, prepare.trace_spans_max()) : nullptr;
  const ObservedCall observed(spans_, ranks_, *copy_engine_);
  ASSIGN_OR_RETURN(Vote vote, VoteWithOthers(*payload, prepare, hooks));
  if (spans_ != nullptr) {
    spans_->Add(v1::StepSpan::PREPARE, start_s, RealClock().MonotonicSeconds());
    *vote.mutable_spans() = spans_->Take();
  }
  *vote.mutable_key() = prepare.key();
  fence_.OnVote(prepare.key());
  return vote;
}

absl::Status ModelEngine::StepWeights(const internal::v1::Apply& apply, double start_s, StepSpans* spans,
                                      internal::v1::Applied& applied) {
  applied.set_nonfinite(AdamwStep(backend_, weights_.parameters, shards_.owned(ranks_.data->rank()),
                                  {apply.adam(), apply.clip(), static_cast<int64_t>(apply.key().step())},
                                  {.copy_engine = copy_engine_.get()}));
  const double gather_start_s = RealClock().MonotonicSeconds();
  if (spans != nullptr) spans->Add(v1::StepSpan::ADAMW, start_s, gather_start_s);
  const int64_t bytes_before = ranks_.data->stats().BytesOf(kWeightsName);
  RETURN_IF_ERROR(PassCollective("apply.in_gather"));
  if (exchange_ != nullptr) RETURN_IF_ERROR(exchange_->GatherWeights());
  if (ranks_.data->size() > 1) {
    const double gather_end_s = RealClock().MonotonicSeconds();
    applied.set_gather_s(gather_end_s - gather_start_s);
    applied.set_gather_bytes(static_cast<uint64_t>(ranks_.data->stats().BytesOf(kWeightsName) - bytes_before));
    if (spans != nullptr) spans->Add(v1::StepSpan::GATHER, gather_start_s, gather_end_s);
  }
  if (!apply.digest()) return absl::OkStatus();
  ASSIGN_OR_RETURN(*applied.mutable_weights_digest(), MeshDigest(weights_, backend_.kernels, digest_ranks()));
  return absl::OkStatus();
}

absl::StatusOr<internal::v1::Applied> ModelEngine::Apply(const internal::v1::Apply& apply) {
  RETURN_IF_ERROR(fence_.CheckApply(apply.key()));
  const double start_s = RealClock().MonotonicSeconds();
  const std::shared_ptr<StepSpans> spans = std::exchange(spans_, nullptr);
  const ObservedCall observed(spans, ranks_, *copy_engine_);
  internal::v1::Applied applied;
  if (!apply.discard()) {
    PassFailpoint("apply.before_step");
    absl::Status status = CatchExceptions([&] { return StepWeights(apply, start_s, spans.get(), applied); });
    if (absl::IsUnavailable(status)) return status;
    // A step that is half applied has no way back: the weights are gone with this process.
    CHECK(status.ok()) << "AdamW failed in the middle of a step: " << status.message();
  }
  fence_.OnApplied(apply.key(), apply.discard());
  *applied.mutable_key() = apply.key();
  const double end_s = RealClock().MonotonicSeconds();
  applied.set_apply_s(end_s - start_s);
  if (spans != nullptr) {
    spans->Add(v1::StepSpan::APPLY, start_s, end_s);
    *applied.mutable_spans() = spans->Take();
  }
  const std::string slow = SlowLine(apply.key(), "APPLY", applied.apply_s(), apply.predicted_s());
  LOG_IF(WARNING, !slow.empty()) << slow;
  return applied;
}

void ModelEngine::Abort(const internal::v1::StepKey& key) {
  spans_ = nullptr;
  fence_.OnAbort(key);
}

absl::Status ModelEngine::LogProb(const internal::v1::LogProb& log_prob, const EngineHooks& hooks) {
  ASSIGN_OR_RETURN(const Payload* const payload, payloads_.FindComplete(log_prob.id()));
  ResultSender sender(log_prob.id(), weights_.run_dtype == at::kDouble, hooks.results);
  const MemberResult results = SendResults(speaks() ? &sender : nullptr, *payload);
  return CatchExceptions([&]() -> absl::Status {
    const LogProbOptions asked = {log_prob.header().temperature(), log_prob.header().entropy()};
    RETURN_IF_ERROR(RunPass(absl::OkStatus(), {log_prob.weights(), log_prob.plan(), asked, results},
                            MakePassOptions(hooks), *payload));
    sender.Flush();
    return absl::OkStatus();
  });
}

absl::StatusOr<internal::v1::VerifyDone> ModelEngine::Verify(const internal::v1::Verify& verify,
                                                             const EngineHooks& hooks) {
  if (fence_.awaits_apply()) return absl::FailedPreconditionError("the gradients of a step wait for its Apply");
  ASSIGN_OR_RETURN(Payload* const payload, payloads_.FindComplete(verify.id()));
  const auto run = [&](const internal::v1::Prepare& prepare, const EngineHooks& of_run) {
    return VoteWithOthers(*payload, prepare, of_run);
  };
  return RunVerification(verify, hooks,
                         {weights_.parameters, norm_ranges_, run, [this](bool can) { return AllRanksCan(can); }});
}

absl::StatusOr<uint64_t> ModelEngine::Export(const internal::v1::Export& request) {
  RETURN_IF_ERROR(CheckFileName(request.name()));
  RETURN_IF_ERROR(CheckFolderName(request.folder()));
  const std::filesystem::path exports = std::filesystem::path(configure_.data_directory()) / "exports";
  ExportTarget target{exports / request.name(), exports / request.folder(), std::nullopt};
  if (request.has_dtype()) target.dtype = request.dtype();
  return ExportOnRanks(weights_, directory_, target, shards_.owned(ranks_.data->rank()), ranks_);
}

absl::Status ModelEngine::Save(const internal::v1::Save& request, const SaveAnswers& answers) {
  return CatchExceptions([&]() -> absl::Status {
    // First: it is a collective, and what refuses a save is one rank's own.
    ASSIGN_OR_RETURN(const std::string digest, MeshDigest(weights_, backend_.kernels, digest_ranks()));
    return saver_.Save(request, digest, answers);
  });
}

}  // namespace stemma::worker
