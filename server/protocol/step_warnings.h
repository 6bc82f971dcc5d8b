// What of a request is not computed because it has no gradient, or is held against nothing, and what its sender is told
// about that. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stemma/v1/training.pb.h"

namespace stemma::server {

// Whether a group runs: some rollout has a loss; no response token counts; what multiplies every token's loss is 0, so
// that it does not run, or runs for its log-probs alone.
enum class GroupRuns { kYes, kNoTokens, kZeroFactor, kForLogProbs };

// One for each group. Advantages are filled.
std::vector<GroupRuns> FindGroupsThatRun(const v1::UpdateHeader& header, const std::vector<v1::PromptGroup>& groups);

struct EmptyGroups {
  uint32_t count = 0;                      // of the mini-batch's groups, those that are not computed
  bool no_gradient = false;                // in none of them; whatever was computed, there is no optimizer step
  std::vector<std::string> warnings = {};  // "all advantages are 0 in 2 of 4 groups: these were not computed"
};

// `mini_batch`: indices into `groups`, whose `runs` are given.
EmptyGroups CountEmptyGroups(const v1::UpdateHeader& header, const std::vector<v1::PromptGroup>& groups,
                             std::span<const GroupRuns> runs, std::span<const uint32_t> mini_batch);

// Says of each group whether it has rewards, all of one sample, and its stat_group has no others. Such a reward has no
// mean to be held against, so it is its advantage.
std::vector<bool> FindLoneRewards(const std::vector<v1::PromptGroup>& groups);

// "2 stat_groups have one reward each: their advantages are the rewards themselves"; nothing where there are none.
// `lone`: of the groups, by FindLoneRewards.
std::vector<std::string> LoneRewardWarnings(const std::vector<v1::PromptGroup>& groups, const std::vector<bool>& lone,
                                            std::span<const uint32_t> mini_batch);

// Adds the steps' warnings to those of the request: with the step's number where there are several, and the first
// kStepWarningsMax of them only.
inline constexpr int kStepWarningsMax = 8;
void AddStepWarnings(v1::UpdateResult& result);

}  // namespace stemma::server
