// Rollouts and groups by what normalization reads of them: masks, rewards, names.
#pragma once

#include <string>
#include <vector>

#include "common/base/arrays.h"
#include "stemma/v1/training.pb.h"

namespace stemma {

inline v1::Rollout MakeRollout(const std::vector<bool>& mask) {
  v1::Rollout rollout;
  rollout.set_response_tokens(PackArray(std::vector<int32_t>(mask.size(), 5)));
  rollout.set_response_mask(PackMask(mask));
  return rollout;
}

inline v1::Rollout WithReward(double reward) {
  v1::Rollout rollout = MakeRollout({true});
  rollout.set_reward(reward);
  return rollout;
}

inline v1::PromptGroup MakeGroup(const std::string& uid, const std::vector<v1::Rollout>& rollouts) {
  v1::PromptGroup group;
  group.set_uid(uid);
  for (const v1::Rollout& rollout : rollouts) *group.add_rollouts() = rollout;
  return group;
}

inline v1::LossConfig Loss(const std::string& mode, const std::string& agg_mode, bool normalize_std = true) {
  v1::LossConfig loss;
  loss.set_loss_mode(mode);
  loss.set_loss_agg_mode(agg_mode);
  loss.set_normalize_advantage_std(normalize_std);
  loss.set_loss_scale_factor(10);
  return loss;
}

}  // namespace stemma
