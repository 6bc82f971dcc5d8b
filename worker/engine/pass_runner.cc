#include "worker/engine/pass_runner.h"

#include <ATen/ops/tensor.h>
#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "worker/memory/cpu_allocator.h"

namespace stemma::worker {
namespace {

void AppendTokens(const std::string& bytes, int64_t begin, int64_t end, std::vector<int64_t>& out) {
  for (int64_t i = begin; i < end; ++i) {
    int32_t token;
    std::memcpy(&token, bytes.data() + static_cast<size_t>(i) * sizeof(token), sizeof(token));
    out.push_back(token);
  }
}

CausalLayout LayoutOf(v1::WaveLayout layout) {
  return layout == v1::PADDED ? CausalLayout::kPadded : CausalLayout::kLoop;
}

v1::TapePolicy PolicyOf(v1::TapePolicy planned) { return planned == v1::TAPE_POLICY_UNSPECIFIED ? v1::S0 : planned; }

// The input rows of a wave: a member's prompt from its first position on, then its response but the last token.
WaveInput MakeWaveInput(const Payload& payload, const std::vector<MemberRows>& members, v1::WaveLayout layout,
                        v1::TapePolicy policy) {
  std::vector<int64_t> tokens, positions;
  WaveInput input;
  for (const MemberRows& m : members) {
    const v1::PromptGroup& group = payload.groups[m.group];
    const GroupShape& shape = payload.shapes[m.group];
    const int64_t response_rows = shape.response_tokens[m.rollout] - 1;
    AppendTokens(group.prompt_tokens(), m.first_position, shape.prompt_tokens, tokens);
    AppendTokens(group.rollouts(static_cast<int>(m.rollout)).response_tokens(), 0, response_rows, tokens);
    for (int64_t row = m.begin; row < m.end; ++row) positions.push_back(m.first_position + row - m.begin);
    input.segments.push_back({m.begin, m.end, m.prefix, m.kv_only_rows});
  }
  input.tokens_T = at::tensor(tokens, at::kLong);
  input.positions_T = at::tensor(positions, at::kLong);
  input.layout = LayoutOf(layout);
  input.policy = policy;
  return input;
}

// Walks a step's operations; the cluster's prefixes live from its Phase A to its Phase C.
class Pass {
 public:
  Pass(const PassOptions& options, const Payload& payload, const v1::StepPlan& plan, bool forward_only)
      : options_(options), payload_(payload), plan_(plan), forward_only_(forward_only) {}
  virtual ~Pass() = default;

  absl::StatusOr<PassSums> Run() {
    const int64_t start_bytes = CpuMemoryStats().current_bytes;
    for (const Operation& operation : ExpandStep(plan_, forward_only_)) {
      if (options_.hooks->cancelled()) return absl::CancelledError("cancelled between waves");
      const v1::Cluster& cluster = plan_.clusters(operation.cluster);
      const double start_s = RealClock().MonotonicSeconds();
      ResetPeakBytes();
      RETURN_IF_ERROR(RunOperation(cluster, operation));
      AddPhase(operation.kind, RealClock().MonotonicSeconds() - start_s, CpuMemoryStats().peak_bytes - start_bytes);
      Progress(operation.kind);
    }
    return sums_;
  }

 protected:
  virtual void Wave(const WaveInput& input, const std::vector<MemberRows>& members) = 0;

  const PassOptions& options_;
  const Payload& payload_;
  const v1::StepPlan& plan_;
  const bool forward_only_;
  PrefixBatch prefixes_;
  PassSums sums_;

 private:
  absl::Status RunOperation(const v1::Cluster& cluster, const Operation& operation) {
    switch (operation.kind) {
      case OperationKind::kPrefixForward:
        return RunPrefixForward(cluster);
      case OperationKind::kWave:
        if (operation.wave + 1 == cluster.waves_size()) prefixes_.LastWave();
        return RunWave(cluster, cluster.waves(operation.wave));
      case OperationKind::kPrefixBackward:
        AddOffload(PrefixBackward(options_.context, std::exchange(prefixes_, {})));
        return absl::OkStatus();
    }
    LOG(FATAL) << "operation " << static_cast<int>(operation.kind);
  }

  void AddPhase(OperationKind kind, double seconds, int64_t peak_bytes) {
    switch (kind) {
      case OperationKind::kPrefixForward:
        sums_.prefix_forward_s += seconds;
        sums_.prefix_forward_bytes = std::max(sums_.prefix_forward_bytes, peak_bytes);
        break;
      case OperationKind::kWave:
        sums_.suffix_s += seconds;
        sums_.suffix_bytes = std::max(sums_.suffix_bytes, peak_bytes);
        break;
      case OperationKind::kPrefixBackward:
        sums_.prefix_backward_s += seconds;
        sums_.prefix_backward_bytes = std::max(sums_.prefix_backward_bytes, peak_bytes);
        break;
    }
  }

  void AddOffload(const ResidencyStats& stats) {
    ResidencyStats& sums = sums_.offload;
    sums.bytes_out += stats.bytes_out;
    sums.bytes_in += stats.bytes_in;
    sums.demand_loads += stats.demand_loads;
    sums.waits += stats.waits;
    sums.kept += stats.kept;
    sums.peak_host_bytes = std::max(sums.peak_host_bytes, stats.peak_host_bytes);
  }

  absl::Status RunPrefixForward(const v1::Cluster& cluster) {
    std::vector<int64_t> tokens, lengths;
    for (const uint32_t g : cluster.prefix_groups()) {
      if (g >= payload_.groups.size() || payload_.shapes[g].prompt_tokens < 2) {
        return absl::InvalidArgumentError("the plan reuses the prefix of group " + std::to_string(g) +
                                          ": not in the payload, or empty");
      }
      lengths.push_back(payload_.shapes[g].prompt_tokens - 1);
      AppendTokens(payload_.groups[g].prompt_tokens(), 0, lengths.back(), tokens);
    }
    prefixes_ = {};
    const bool offload = cluster.offload_prefix();
    prefixes_ = PrefixForward(options_.context, tokens, lengths,
                              {.forward_only = forward_only_,
                               .policy = PolicyOf(cluster.prefix_policy()),
                               .block_rows = cluster.prefix_block_rows(),
                               .host = offload ? options_.host : nullptr,
                               .copies = offload ? options_.copies : nullptr,
                               .offload_headroom_bytes = static_cast<int64_t>(cluster.offload_headroom_bytes())});
    sums_.tokens_computed += static_cast<int64_t>(tokens.size());
    return absl::OkStatus();
  }

  absl::Status RunWave(const v1::Cluster& cluster, const v1::Wave& wave) {
    ASSIGN_OR_RETURN(const std::vector<MemberRows> members, WaveRows(payload_.shapes, cluster, wave));
    Wave(MakeWaveInput(payload_, members, wave.layout(), PolicyOf(cluster.suffix_policy())), members);
    ++sums_.waves;
    for (const MemberRows& m : members) {
      const GroupShape& shape = payload_.shapes[m.group];
      sums_.tokens_computed += m.end - m.begin;
      sums_.tokens_logical += shape.prompt_tokens - 1 + shape.response_tokens[m.rollout];
    }
    return absl::OkStatus();
  }

  void Progress(OperationKind kind) {
    internal::v1::Heartbeat heartbeat;
    heartbeat.set_phase(kind == OperationKind::kPrefixForward ? "prefix_forward"
                        : kind == OperationKind::kWave        ? "suffix"
                                                              : "prefix_backward");
    options_.hooks->progress(heartbeat);
  }
};

// Slices the head's output by member; its rows at the head are its response tokens.
void Report(const HeadOutput& output, const std::vector<MemberRows>& members, const Payload& payload,
            const MemberResult& results) {
  for (const MemberRows& m : members) {
    const auto rows = static_cast<size_t>(payload.shapes[m.group].response_tokens[m.rollout]);
    const auto begin = static_cast<size_t>(m.head_begin);
    const std::span<const double> entropy =
        output.entropy.empty() ? std::span<const double>() : std::span(output.entropy).subspan(begin, rows);
    results(m, std::span(output.log_prob).subspan(begin, rows), entropy);
  }
}

class TrainPass : public Pass {
 public:
  TrainPass(const PassOptions& options, const Payload& payload, const v1::StepPlan& plan, const LossPlan& loss,
            const MemberResult& results)
      : Pass(options, payload, plan, /*forward_only=*/false), loss_(loss), results_(results) {}

 private:
  void Wave(const WaveInput& input, const std::vector<MemberRows>& members) override {
    const Weights& weights = *options_.context.weights;
    WaveLoss wave_loss(loss_, payload_, members);
    const HeadOptions head{loss_.temperature, options_.head_chunk_rows, /*need_entropy=*/true};
    WaveForwardResult forward = WaveForward(options_.context, prefixes_, input, /*keep_tape=*/true);
    HeadBackwardResult result = HeadForwardBackward(
        forward.hidden_BD, weights.at(weights.head).weight, wave_loss.targets(), head, wave_loss.rollouts(),
        NeedsWholeRollouts(loss_.options.mode),
        [&](RowRange range, std::span<const double> log_prob, std::span<const double> entropy,
            std::span<double> dlog_prob,
            std::span<double> dentropy) { wave_loss.Gradient(range, log_prob, entropy, dlog_prob, dentropy); },
        weights.at(weights.head).grad);
    forward.hidden_BD.reset();
    WaveBackward(options_.context, prefixes_, input, std::move(forward.tape), std::move(result.dhidden_TD));
    sums_.loss += wave_loss.sums();
    Report(result.output, members, payload_, results_);
  }

  const LossPlan& loss_;
  const MemberResult& results_;
};

class ForwardPass : public Pass {
 public:
  ForwardPass(const PassOptions& options, const Payload& payload, const v1::StepPlan& plan,
              const LogProbOptions& log_prob, const MemberResult& results)
      : Pass(options, payload, plan, /*forward_only=*/true), log_prob_(log_prob), results_(results) {}

 private:
  void Wave(const WaveInput& input, const std::vector<MemberRows>& members) override {
    const Weights& weights = *options_.context.weights;
    std::vector<int64_t> targets;
    for (const MemberRows& m : members) {
      AppendTokens(payload_.groups[m.group].rollouts(static_cast<int>(m.rollout)).response_tokens(), 0,
                   payload_.shapes[m.group].response_tokens[m.rollout], targets);
    }
    const WaveForwardResult forward = WaveForward(options_.context, prefixes_, input, /*keep_tape=*/false);
    const HeadOutput output = HeadForward(forward.hidden_BD, weights.at(weights.head).weight, targets,
                                          {log_prob_.temperature, options_.head_chunk_rows, log_prob_.entropy});
    Report(output, members, payload_, results_);
  }

  const LogProbOptions& log_prob_;
  const MemberResult& results_;
};

}  // namespace

absl::StatusOr<PassSums> RunStep(const PassOptions& options, const Payload& payload, const v1::StepPlan& plan,
                                 const LossPlan& loss, const MemberResult& results) {
  return TrainPass(options, payload, plan, loss, results).Run();
}

absl::StatusOr<PassSums> RunLogProb(const PassOptions& options, const Payload& payload, const v1::StepPlan& plan,
                                    const LogProbOptions& log_prob, const MemberResult& results) {
  return ForwardPass(options, payload, plan, log_prob, results).Run();
}

}  // namespace stemma::worker
