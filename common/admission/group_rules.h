// What a prompt group and its rollouts may hold. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "common/admission/header_rules.h"
#include "common/admission/violations.h"
#include "stemma/v1/training.pb.h"

namespace stemma {

struct GroupLimits {
  int64_t vocab_size = 0;
  int64_t max_positions = 0;
  uint64_t string_bytes = 0;
  RunNumbers numbers = {};
};

// `path`: "groups[3]". Checks uid (not its uniqueness), prompt, stat_group.
void CheckGroup(const std::string& path, const v1::PromptGroup& group, const GroupLimits& limits,
                Violations& violations);

struct RolloutPlace {
  std::string path;  // "groups[3].rollouts[1]"
  const std::string& uid;
  int64_t prompt_tokens = 0;
};

// Checks rollout_id (not its uniqueness), tokens, every array's length and numbers, and what `needs` asks. Numbers of
// masked tokens are never read, here or later: whatever they are, NaN included, is taken. A prompt and a rollout, which
// are never cut, have at most kUncutBytesMax (common/base/message_sizes.h).
void CheckRollout(const RolloutPlace& place, const v1::Rollout& rollout, const RolloutNeeds& needs,
                  const GroupLimits& limits, Violations& violations);

}  // namespace stemma
