#include "worker/engine/pass_runner.h"

#include <glog/logging.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/trace/loss_names.h"
#include "worker/engine/abandoned_exchanges.h"
#include "worker/engine/copy_agreement.h"
#include "worker/engine/counting_context.h"
#include "worker/engine/exceptions.h"
#include "worker/engine/pass_plan.h"
#include "worker/engine/pass_times.h"
#include "worker/engine/pass_visits.h"
#include "worker/engine/rank_sizes.h"
#include "worker/engine/results.h"
#include "worker/engine/split_exchange.h"
#include "worker/engine/wave_input.h"
#include "worker/model/prefix.h"
#include "worker/schedule/last_operations.h"
#include "worker/schedule/program.h"

namespace stemma::worker {
namespace {

// Hidden states that a stage may have sent in a forward-only pass and the next one has not taken.
constexpr int64_t kHiddenAheadMax = 2;

// Interprets a step's program. Hot sets live in a table from Phase A to Phase C, waves from forward to backward, by
// their indices in the plan: a program may hold several of each.
class Pass {
 public:
  // loss: null for a forward-only pass.
  Pass(const PassOptions& options, const Payload& payload, const v1::StepPlan& plan, const LossPlan* loss,
       const HeadOptions& head, const MemberResult& results)
      : options_(options),
        payload_(payload),
        plan_(plan),
        loss_(loss),
        wave_head_(options.context, payload, loss, head, results),
        visits_(options.units, *options.context.weights),
        times_(*options.context.backend, options.spans, /*entry=*/loss == nullptr, options.copy),
        reports_(*options.context.backend, wave_head_) {
    if (options.data != nullptr) split_.emplace(*options.data, options.context);
    no_prefixes_.kv = std::make_unique<LocalHotSet>(PrefixRows{});
  }

  absl::StatusOr<PassSums> Run() {
    start_bytes_ = options_.context.backend->memory_stats().current_bytes;
    RankSizes sizes;
    absl::Status status = Expand(sizes);
    auto next = program_.begin();
    Program skipped;  // operations of clusters that do not run
    if (status.ok()) status = RunProgram(next, skipped);
    // All stages give up at one exchange, so what they sent each other has been taken.
    if (absl::IsAborted(status)) {
      const absl::Status ended = CatchExceptions([&] {
        options_.context.stages->EndPass();
        return absl::OkStatus();
      });
      if (!ended.ok()) status = ended;
    }
    if (!status.ok()) visits_.Stop(status);
    if (split_.has_value()) sums_.split_bytes = split_->sent_bytes();
    if (status.ok()) return sums_;
    live_waves_.clear();  // the walk takes memory, too
    hot_sets_.clear();
    skipped.insert(skipped.end(), next, program_.end());
    return Abandon(skipped, sizes, status);
  }

  // Walks the exchanges of operations that are not run, because of `cause`. Returns it, or Unavailable.
  absl::Status Abandon(std::span<const Operation> rest, const RankSizes& sizes, const absl::Status& cause) {
    if (!split_.has_value()) return cause;
    return AbandonExchanges({*split_, plan_, sizes, options_.copy}, rest, cause);
  }

 private:
  using WaveKey = std::pair<int, int>;  // cluster, wave
  bool forward_only() const { return loss_ == nullptr; }
  const ModelConfig& model() const { return options_.context.weights->config; }
  bool has_head() const { return options_.context.stages->is_last(); }
  // Whether this rank, and no other that runs the same rows, counts them.
  bool counts() const { return options_.copy.tp_rank() == 0 && has_head(); }

  // Fills the program and the sizes that it follows from, and checks the plan against the payload. Where the plan is
  // refused the program is the one whose exchanges are walked.
  absl::Status Expand(RankSizes& sizes) {
    const absl::Status checked = CatchExceptions([&] {
      sizes = RankSizesOf(options_.data, options_.copy, payload_);
      program_ = ExpandStep(plan_, forward_only(), sizes);
      RETURN_IF_ERROR(CheckPassPlan(plan_, payload_, sizes, loss_, model(), visits_.sharded()));
      visits_.Begin(program_, plan_, sizes, forward_only());
      return absl::OkStatus();
    });
    // The last stage alone knows the log-probs of the pass before; and a plan of another copy may be a wrong one.
    absl::Status status = EndChecks(options_.copy, options_.copy.pp_size() > 1 || visits_.sharded(), checked);
    if (!status.ok()) program_ = ExpandInTurn(plan_, forward_only(), sizes);
    last_ = LastOperations(program_);
    return status;
  }

  // Runs the program to its end. After an error `next` is the first operation that is still to be walked. Adds what it
  // leaves out to `skipped`.
  absl::Status RunProgram(Program::iterator& next, Program& skipped) {
    CancelPoll cancel(options_.copy, *options_.context.stages, *options_.hooks);
    for (; next != program_.end(); ++next) {
      if (next->cluster >= stop_before_) {
        skipped.push_back(*next);
        continue;
      }
      bool polled = false, ran = false;
      const absl::Status status = RunPolled(*next, cancel, polled, ran);
      if (!polled && DrainsStages(*next, status)) {
        skipped.push_back(*next);
        continue;
      }
      if (status.ok()) continue;
      // An exchange that the other rank gave up is over, too; after any other error it is still to be walked.
      if (polled && (ran || absl::IsAborted(status))) ++next;
      return status;
    }
    return CatchExceptions([&] { return EndPass(cancel); });
  }

  // `polled`: nothing was cancelled before the operation. `ran`: as RunMeasured has it.
  absl::Status RunPolled(const Operation& operation, CancelPoll& cancel, bool& polled, bool& ran) {
    const absl::Status status = CatchExceptions([&]() -> absl::Status {
      RETURN_IF_ERROR(cancel.Poll(operation.cluster));
      polled = true;
      visits_.BeginOperation(operation);
      return RunMeasured(operation, ran);
    });
    return InsideCopy(options_.copy, polled ? visits_.InsideOperation(status) : status);
  }

  // Whether a pipeline that was cancelled before this operation's cluster ends those that were begun: other stages wait
  // for what they have of them.
  bool DrainsStages(const Operation& operation, const absl::Status& status) {
    if (options_.copy.pp_size() == 1 || status.ok() || absl::IsUnavailable(status)) return false;
    stop_before_ = operation.cluster;
    stopped_ = status;
    return true;
  }

  absl::Status EndPass(CancelPoll& cancel) {
    if (stopped_.ok() && !options_.copy.alone()) RETURN_IF_ERROR(cancel.Poll(plan_.clusters_size() - 1));
    options_.context.stages->EndPass();
    visits_.End();
    CountLoss(reports_.End());
    times_.Settle(sums_);
    return stopped_;
  }

  // `ran`: the operation itself has succeeded, whatever comes of the rest.
  absl::Status RunMeasured(const Operation& operation, bool& ran) {
    const Backend& backend = *options_.context.backend;
    if (operation.kind == OperationKind::kIdle) return absl::OkStatus();
    RETURN_IF_ERROR(MeetBefore(operation));
    const double apart_before_s = SecondsApart();
    times_.Begin();
    backend.reset_peak_bytes();
    RETURN_IF_ERROR(RunOperation(operation));
    ran = true;
    EndForwardOnly(operation);
    times_.End(operation, SecondsApart() - apart_before_s, held_s_, sums_);
    sums_.AddPeak(operation.kind, backend.memory_stats().peak_bytes - start_bytes_);
    Progress(operation.kind);
    return absl::OkStatus();
  }

  // What is in none of the phases' seconds: what other stages and parameters are waited for, and what holds the engine.
  double SecondsApart() const {
    return options_.context.stages->waited_s() + options_.context.parameters->waited_s() + held_s_;
  }

  // Waits, before Phase C, until all context-parallel ranks have ended their waves, and their devices with them: Phase
  // C begins with an exchange, and what a rank waits there for others' waves is no part of it.
  absl::Status MeetBefore(const Operation& operation) {
    if (operation.kind != OperationKind::kPrefixBackward || options_.copy.cp_size() == 1) return absl::OkStatus();
    times_.AwaitDevice();
    int64_t word = 0;
    return options_.copy.cp->Agree(kWavesEndedName, {&word, 1});
  }

  absl::Status RunOperation(const Operation& operation) {
    switch (operation.kind) {
      case OperationKind::kPrefixForward:
        return RunPrefixForward(operation);
      case OperationKind::kWaveForward:
        return RunWaveForward(operation);
      case OperationKind::kWaveBackward:
        RunWaveBackward({operation.cluster, operation.wave}, LayerFinalIn(operation));
        return absl::OkStatus();
      case OperationKind::kPrefixBackward:
        sums_.AddOffload(PrefixBackward(options_.context, TakePrefixes(operation.cluster), LayerFinalIn(operation)));
        return absl::OkStatus();
      case OperationKind::kJoinForward:
        if (last_.IsLastForward(operation)) Prefixes(operation.cluster).LastWave();
        JoinWaveForward(options_.context, JoinedKv(operation), wave_head_.head_use());
        return absl::OkStatus();
      case OperationKind::kJoinBackward:
        JoinWaveBackward(options_.context, JoinedKv(operation));
        return absl::OkStatus();
      case OperationKind::kJoinPrefixForward:
        JoinPrefixForward(options_.context);
        return absl::OkStatus();
      case OperationKind::kJoinPrefixBackward:
        JoinWaveBackward(options_.context, /*kv=*/nullptr);
        return absl::OkStatus();
      case OperationKind::kSend:
      case OperationKind::kReceive:
        return RunExchange(operation);
      default:
        LOG(FATAL) << "no plan makes this: " << OperationText(operation);
    }
  }

  PrefixKv* JoinedKv(const Operation& operation) {
    return JoinsCopy(operation) ? Prefixes(operation.cluster).kv.get() : nullptr;
  }

  LayerFinal LayerFinalIn(const Operation& operation) {
    if (&operation != &program_.back() || !options_.layer_final) return nullptr;
    if (!OtherAxesMayBeginIn(operation, plan_, options_.copy.cp_size())) return nullptr;
    return [this](int64_t layer) {
      const double start_s = RealClock().MonotonicSeconds();
      options_.layer_final(layer);
      held_s_ += RealClock().MonotonicSeconds() - start_s;
    };
  }

  absl::Status RunExchange(const Operation& operation) {
    const int cluster = operation.cluster, peer = options_.copy.DataRankInCopy(operation.peer_copy);
    const bool sends = operation.kind == OperationKind::kSend;
    if (operation.part == PrefixPart::kGradients) {
      if (!sends) return split_->ReceiveGradients(peer, Prefixes(cluster).all_rows());
      RETURN_IF_ERROR(split_->SendGradients(peer, Prefixes(cluster).all_rows()));
      TakePrefixes(cluster);
      return absl::OkStatus();
    }
    if (sends) return split_->SendKv(peer, Prefixes(cluster).all_rows());
    const uint32_t group = plan_.clusters(cluster).prefix_groups(0);
    PrefixBatch borrowed = BorrowedPrefix(options_.context, payload_.shapes[group].prompt_tokens - 1, forward_only());
    const auto [at, added] = hot_sets_.emplace(cluster, std::move(borrowed));
    CHECK(added) << "cluster " << cluster << " has a hot set already";
    return split_->ReceiveKv(peer, at->second.all_rows());
  }

  absl::Status RunPrefixForward(const Operation& operation) {
    const v1::Cluster& cluster = plan_.clusters(operation.cluster);
    ASSIGN_OR_RETURN(const PrefixTokens prefix, TokensOfPrefixes(payload_, cluster, model().vocab_size));
    const bool offload = cluster.offload_prefix();
    PrefixBatch prefixes =
        PrefixForward(*counting_, prefix.tokens, prefix.lengths,
                      {.forward_only = forward_only(),
                       .policy = PolicyOf(cluster.prefix_policy()),
                       .block_rows = cluster.prefix_block_rows(),
                       .regather = cluster.regather_prefix(),
                       .others_run_again = cluster.sweeps().prefix_again(),
                       .multiplicities = {cluster.prefix_rollouts().begin(), cluster.prefix_rollouts().end()},
                       .host = offload ? options_.host : nullptr,
                       .copy_engine = offload ? options_.copy_engine : nullptr,
                       .offload_headroom_bytes = static_cast<int64_t>(cluster.offload_headroom_bytes())});
    if (counts()) sums_.tokens_computed += prefixes.own_rows();
    const auto [at, added] = hot_sets_.emplace(operation.cluster, std::move(prefixes));
    CHECK(added) << "Phase A of cluster " << operation.cluster << " ran before";
    if (last_.IsLastForward(operation)) at->second.LastWave();  // a context-parallel rank without a wave
    return absl::OkStatus();
  }

  // The prefixes of a cluster; empty where no group of it shares one.
  PrefixBatch& Prefixes(int cluster) {
    const auto found = hot_sets_.find(cluster);
    if (found != hot_sets_.end()) return found->second;
    CHECK_EQ(plan_.clusters(cluster).prefix_groups_size(), 0) << "Phase A of cluster " << cluster << " did not run";
    return no_prefixes_;
  }

  static WavePrefixes BehindWave(PrefixBatch& prefixes) {
    return {*prefixes.kv, [&prefixes] { prefixes.Poll(); }};
  }

  PrefixBatch TakePrefixes(int cluster) {
    const auto node = hot_sets_.extract(cluster);
    CHECK(!node.empty()) << "Phase A of cluster " << cluster << " did not run";
    return std::move(node.mapped());
  }

  absl::Status RunWaveForward(const Operation& operation) {
    const v1::Cluster& cluster = plan_.clusters(operation.cluster);
    const v1::Wave& wave = cluster.waves(operation.wave);
    PrefixBatch& prefixes = Prefixes(operation.cluster);
    if (last_.IsLastForward(operation)) prefixes.LastWave();
    LiveWave live;
    ASSIGN_OR_RETURN(live.members, WaveRows(payload_.shapes, cluster, wave));
    if (has_head()) RETURN_IF_ERROR(CheckEntryLogProbs(payload_, live.members, loss_));
    const auto rows = RowsOfRank(wave, live.members, options_.context.cp_rank(), options_.context.cp_size());
    ASSIGN_OR_RETURN(WaveTensors tensors, MakeWaveTensors(options_.context, payload_, rows, cluster, wave));
    live.input = std::move(tensors.input);
    WaveForwardResult out = WaveForward(*counting_, BehindWave(prefixes), live.input, /*keep_tape=*/!forward_only());
    live.tape = std::move(out.tape);
    if (has_head()) wave_head_.Run(std::move(out.hidden_BD), tensors.targets_B, live);
    CountTokens(rows);
    if (!forward_only()) {
      CHECK(live_waves_.emplace(WaveKey{operation.cluster, operation.wave}, std::move(live)).second);
      return absl::OkStatus();
    }
    if (has_head()) CountLoss(reports_.Add(std::move(live.results)));
    return absl::OkStatus();
  }

  // Ends the hot set with the last operation of its cluster in a pass that has no Phase C: a context-parallel rank may
  // have no wave of it.
  void EndForwardOnly(const Operation& operation) {
    if (!forward_only()) return;
    StageLinks& stages = *options_.context.stages;  // no gradient ever says that what was sent has been taken
    stages.RetireHidden(std::max<int64_t>(stages.hidden_sent() - kHiddenAheadMax, 0));
    if (last_.IsLast(operation)) hot_sets_.erase(operation.cluster);
  }

  void RunWaveBackward(WaveKey key, const LayerFinal& layer_final) {
    auto node = live_waves_.extract(key);
    CHECK(!node.empty()) << "wave " << key.second << " of cluster " << key.first << " has left no tape";
    LiveWave live = std::move(node.mapped());
    WaveBackward(options_.context, BehindWave(Prefixes(key.first)), live.input, std::move(live.tape),
                 std::move(live.dhidden_BD), layer_final);
    if (has_head()) CountLoss(reports_.Add(std::move(live.results)));
  }

  void CountTokens(const std::vector<MemberRows>& rows) {
    ++sums_.waves;
    if (counts()) sums_.AddTokens(rows, payload_.shapes);
  }

  void CountLoss(const LossSums& sums) { sums_.loss += counts() ? sums : LossSums{}; }

  void Progress(OperationKind kind) {
    internal::v1::Heartbeat heartbeat;
    heartbeat.set_phase(PhaseName(kind));
    options_.hooks->progress(heartbeat);
  }

  const PassOptions& options_;
  const Payload& payload_;
  const v1::StepPlan& plan_;
  const LossPlan* loss_;
  const WaveHead wave_head_;
  PassVisits visits_;
  PassTimes times_;
  WaveReports reports_;
  PrefixBatch no_prefixes_;
  std::map<int, PrefixBatch> hot_sets_;  // by cluster
  std::map<WaveKey, LiveWave> live_waves_;
  std::optional<SplitExchange> split_;  // with several ranks
  Program program_;                     // an operation is known by its address here, since two may be equal
  LastOperations last_;
  int stop_before_ = std::numeric_limits<int>::max();  // the first cluster that does not run
  absl::Status stopped_;                               // why
  int64_t start_bytes_ = 0;                            // of the device, when the pass began
  double held_s_ = 0;                                  // by layer_final, in the last operation
  PassSums sums_;
  const CountingContext counting_ = {options_.context, !forward_only() && options_.copy.tp_rank() == 0,
                                     sums_.expert_load};
};

}  // namespace

absl::StatusOr<PassSums> RunStep(const PassOptions& options, const Payload& payload, const v1::StepPlan& plan,
                                 const LossPlan& loss, const MemberResult& results) {
  const HeadOptions head{loss.temperature, options.head_chunk_rows, /*need_entropy=*/true, options.context.vocabulary(),
                         NeedsWholeRollouts(loss.options.mode)};
  return Pass(options, payload, plan, &loss, head, results).Run();
}

absl::StatusOr<PassSums> RunLogProb(const PassOptions& options, const Payload& payload, const v1::StepPlan& plan,
                                    const LogProbOptions& log_prob, const MemberResult& results) {
  const HeadOptions head{log_prob.temperature, options.head_chunk_rows, log_prob.entropy, options.context.vocabulary(),
                         log_prob.whole_rollouts};
  return Pass(options, payload, plan, nullptr, head, results).Run();
}

absl::Status AbandonPass(const PassOptions& options, const Payload& payload, const v1::StepPlan& plan,
                         bool forward_only, const absl::Status& cause) {
  CHECK(!cause.ok());
  const RankSizes sizes = RankSizesOf(options.data, options.copy, payload);
  const MemberResult no_results;
  return Pass(options, payload, plan, /*loss=*/nullptr, {}, no_results)
      .Abandon(ExpandInTurn(plan, forward_only, sizes), sizes, cause);
}

}  // namespace stemma::worker
