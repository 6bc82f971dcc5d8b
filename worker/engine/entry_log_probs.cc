#include "worker/engine/entry_log_probs.h"

#include <ATen/ops/zeros.h>
#include <glog/logging.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "worker/engine/exceptions.h"

namespace stemma::worker {
namespace {

// Calls f(rank, group, rollout, tokens) for each rollout of the pass, in the plan's order.
template <typename F>
void ForEachRollout(const std::vector<GroupShape>& groups, const v1::StepPlan& pass, const F& f) {
  for (const v1::Cluster& cluster : pass.clusters()) {
    for (const v1::Wave& wave : cluster.waves()) {
      for (const v1::WaveMember& member : wave.members()) {
        f(wave.cp_rank(), member.group(), member.rollout(), groups[member.group()].response_tokens[member.rollout()]);
      }
    }
  }
}

absl::Status Share(Communicator& cp, const std::vector<GroupShape>& groups, const v1::StepPlan& pass,
                   EntryLogProbs& entry) {
  std::vector<int64_t> tokens_of_ranks(static_cast<size_t>(cp.size()));
  ForEachRollout(groups, pass, [&](uint32_t rank, uint32_t /*group*/, uint32_t /*rollout*/, int64_t tokens) {
    tokens_of_ranks[rank] += tokens;
  });
  const int64_t part = *std::max_element(tokens_of_ranks.begin(), tokens_of_ranks.end());
  if (part == 0) return absl::OkStatus();
  at::Tensor all = at::zeros({cp.size(), part}, at::kDouble);
  const at::Tensor own = at::zeros({part}, at::kDouble);
  auto* next_own = own.mutable_data_ptr<double>();
  ForEachRollout(groups, pass, [&](uint32_t rank, uint32_t group, uint32_t rollout, int64_t tokens) {
    if (rank != static_cast<uint32_t>(cp.rank())) return;
    const std::vector<double>& values = entry[group][rollout];
    CHECK_EQ(static_cast<int64_t>(values.size()), tokens) << "the pass has not computed a rollout of its plan";
    next_own = std::copy(values.begin(), values.end(), next_own);
  });
  RETURN_IF_ERROR(cp.AllGather(kEntryLogProbsName, own, all));
  std::vector<const double*> next;
  for (int rank = 0; rank < cp.size(); ++rank) next.push_back(all.const_data_ptr<double>() + rank * part);
  ForEachRollout(groups, pass, [&](uint32_t rank, uint32_t group, uint32_t rollout, int64_t tokens) {
    entry[group][rollout].assign(next[rank], next[rank] + tokens);
    next[rank] += tokens;
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status ComputeEntryLogProbs(const internal::v1::Prepare& prepare, const EntryRanks& ranks,
                                  const RunEntryPass& run, Payload& payload) {
  payload.log_probs_s = 0;
  if (!prepare.has_log_prob_pass()) return absl::OkStatus();
  const double start_s = RealClock().MonotonicSeconds();
  payload.entry_log_probs.clear();
  absl::Status status;
  for (const internal::v1::PassWeights& weights : prepare.pass_weights()) {
    EntryLogProbs& entry = payload.entry_log_probs[weights.name()];
    for (const GroupShape& shape : payload.shapes) entry.emplace_back(shape.response_tokens.size());
    const MemberResult store = [&](const MemberRows& m, std::span<const double> log_prob, std::span<const double>) {
      entry[m.group][m.rollout].assign(log_prob.begin(), log_prob.end());
    };
    status = run(status, weights, store);
    if (!status.ok() || !ranks.have_results) continue;
    status = InsideCopy(ranks.together, ShareEntryLogProbs(ranks.cp, payload.shapes, prepare.log_prob_pass(), entry));
  }
  payload.log_probs_s = RealClock().MonotonicSeconds() - start_s;
  return status;
}

absl::Status ShareEntryLogProbs(Communicator& cp, const std::vector<GroupShape>& groups, const v1::StepPlan& pass,
                                EntryLogProbs& entry) {
  if (cp.size() == 1) return absl::OkStatus();
  return CatchExceptions([&] { return Share(cp, groups, pass, entry); });
}

}  // namespace stemma::worker
