#include "server/protocol/step_warnings.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/admission/normalization.h"
#include "common/trace/loss_names.h"
#include "common/trace/sample_tokens.h"

namespace stemma::server {
namespace {

GroupRuns RunsOf(const v1::UpdateHeader& header, const v1::PromptGroup& group) {
  bool has_tokens = false;
  for (const v1::Rollout& rollout : group.rollouts()) {
    if (HasLoss(header.loss(), rollout)) return GroupRuns::kYes;
    has_tokens = has_tokens || UnmaskedTokens(rollout) > 0;
  }
  if (!has_tokens) return GroupRuns::kNoTokens;
  return header.return_log_probs() ? GroupRuns::kForLogProbs : GroupRuns::kZeroFactor;
}

bool SendsImportanceWeights(const v1::PromptGroup& group) {
  return std::any_of(group.rollouts().begin(), group.rollouts().end(),
                     [](const v1::Rollout& rollout) { return !rollout.rollout_is_weights().empty(); });
}

// What multiplies a token's loss.
const char* FactorName(const v1::UpdateHeader& header, bool importance_weights) {
  const absl::StatusOr<LossMode> mode = ParseLossMode(header.loss().loss_mode());
  if (!mode.ok() || !NeedsAdvantages(*mode)) return "loss_weights";
  return importance_weights ? "advantages times rollout_is_weights" : "advantages";
}

std::string Warning(const std::string& what, uint32_t count, size_t groups, const char* consequence) {
  return absl::StrCat(what, " in ", count, " of ", groups, " groups: ", consequence);
}

// The rewards of a stat_group.
struct Rewarded {
  const v1::Rollout* first = nullptr;
  bool is_one_sample = true;

  void Add(const v1::Rollout& rollout) {
    if (first == nullptr) {
      first = &rollout;
    } else if (!rollout.has_sample_id() || !first->has_sample_id() || rollout.sample_id() != first->sample_id()) {
      is_one_sample = false;
    }
  }
};

}  // namespace

std::vector<GroupRuns> FindGroupsThatRun(const v1::UpdateHeader& header, const std::vector<v1::PromptGroup>& groups) {
  std::vector<GroupRuns> runs;
  runs.reserve(groups.size());
  for (const v1::PromptGroup& group : groups) runs.push_back(RunsOf(header, group));
  return runs;
}

EmptyGroups CountEmptyGroups(const v1::UpdateHeader& header, const std::vector<v1::PromptGroup>& groups,
                             std::span<const GroupRuns> runs, std::span<const uint32_t> mini_batch) {
  uint32_t zero = 0, no_tokens = 0, for_log_probs = 0;
  bool importance_weights = false;
  for (const uint32_t index : mini_batch) {
    if (runs[index] == GroupRuns::kNoTokens) ++no_tokens;
    if (runs[index] == GroupRuns::kYes || runs[index] == GroupRuns::kNoTokens) continue;
    ++(runs[index] == GroupRuns::kZeroFactor ? zero : for_log_probs);
    importance_weights = importance_weights || SendsImportanceWeights(groups[index]);
  }
  EmptyGroups empty = {.count = zero + no_tokens};
  empty.no_gradient = empty.count + for_log_probs == mini_batch.size();
  const char* const left_out = empty.count == mini_batch.size() ? "nothing was computed" : "these were not computed";
  const std::string factor = absl::StrCat("all ", FactorName(header, importance_weights), " are 0");
  if (zero > 0) empty.warnings.push_back(Warning(factor, zero, mini_batch.size(), left_out));
  if (for_log_probs > 0) {
    empty.warnings.push_back(
        Warning(factor, for_log_probs, mini_batch.size(), "these were computed for their log-probs alone"));
  }
  if (no_tokens > 0) {
    empty.warnings.push_back(Warning("no response token has mask 1", no_tokens, mini_batch.size(), left_out));
  }
  return empty;
}

std::vector<bool> FindLoneRewards(const std::vector<v1::PromptGroup>& groups) {
  std::vector<bool> lone(groups.size(), false);
  absl::flat_hash_map<std::string, Rewarded> by_stat_group;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const v1::Rollout& rollout : groups[g].rollouts()) {
      if (!rollout.has_reward()) continue;
      by_stat_group[StatGroupOf(groups[g])].Add(rollout);
      lone[g] = true;
    }
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    lone[g] = lone[g] && by_stat_group.at(StatGroupOf(groups[g])).is_one_sample;
  }
  return lone;
}

std::vector<std::string> LoneRewardWarnings(const std::vector<v1::PromptGroup>& groups, const std::vector<bool>& lone,
                                            std::span<const uint32_t> mini_batch) {
  absl::flat_hash_set<std::string> names;
  for (const uint32_t index : mini_batch) {
    if (lone[index]) names.insert(StatGroupOf(groups[index]));
  }
  if (names.empty()) return {};
  if (names.size() == 1) return {"1 stat_group has one reward: its advantage is the reward itself"};
  return {absl::StrCat(names.size(), " stat_groups have one reward each: their advantages are the rewards themselves")};
}

void AddStepWarnings(v1::UpdateResult& result) {
  const int steps = result.steps_size();
  int added = 0, left_out = 0;
  for (int k = 0; k < steps; ++k) {
    for (const std::string& warning : result.steps(k).warnings()) {
      if (added == kStepWarningsMax) {
        ++left_out;
        continue;
      }
      ++added;
      result.add_warnings(steps == 1 ? warning : absl::StrCat("step ", k + 1, " of ", steps, ": ", warning));
    }
  }
  if (left_out > 0) result.add_warnings(absl::StrCat(left_out, " more warnings stand at their steps"));
}

}  // namespace stemma::server
