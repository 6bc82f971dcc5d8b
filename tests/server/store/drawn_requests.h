// Requests and plans drawn from a seed, as the spool keeps them.
#pragma once

#include <cstdint>
#include <string>

#include "common/admission/training_request.h"
#include "common/base/mesh.h"
#include "common/base/split_mix.h"
#include "gtest/gtest.h"
#include "server/protocol/request_plan.h"
#include "server/store/spool_reader.h"

namespace stemma::server {

inline std::string DrawnBytes(SplitMix64& random, uint64_t size) {
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random.Next());
  return bytes;
}

inline v1::Rollout DrawnRollout(SplitMix64& random, uint64_t bytes_max, int index) {
  v1::Rollout rollout;
  rollout.set_rollout_id("r" + std::to_string(index));
  rollout.set_response_tokens(DrawnBytes(random, random.Next() % bytes_max));
  if (random.Next() % 2 == 0) rollout.set_old_log_probs(DrawnBytes(random, random.Next() % bytes_max));
  if (random.Next() % 2 == 0) rollout.set_advantage(static_cast<double>(random.Next()) / 3);
  if (random.Next() % 3 == 0) rollout.set_token_advantages(DrawnBytes(random, random.Next() % 100));
  if (random.Next() % 3 == 0) rollout.set_reward(-0.0);
  return rollout;
}

inline TrainingRequest DrawnRequest(uint64_t seed, int num_groups, uint64_t rollout_bytes_max) {
  SplitMix64 random(seed);
  TrainingRequest request;
  request.update.mutable_request()->set_request_id("run/step-" + std::to_string(seed));
  request.update.mutable_request()->set_expected_step(random.Next());
  request.update.set_num_groups(static_cast<uint64_t>(num_groups));
  request.digest = DrawnBytes(random, 0) + "0123456789abcdef";
  request.num_steps = random.Next();
  request.num_tokens = random.Next();
  for (int g = 0; g < num_groups; ++g) {
    v1::PromptGroup& group = request.groups.emplace_back();
    group.set_uid("g" + std::to_string(g));
    group.set_prompt_tokens(DrawnBytes(random, 4 * (1 + random.Next() % 50)));
    if (random.Next() % 2 == 0) group.set_stat_group("s" + std::to_string(g % 3));
    for (int r = static_cast<int>(random.Next() % 6); r > 0; --r) {
      *group.add_rollouts() = DrawnRollout(random, rollout_bytes_max, r);
      ++request.num_rollouts;
    }
    request.bytes += group.ByteSizeLong();
  }
  return request;
}

inline RequestPlan DrawnPlan(uint64_t seed, int num_groups) {
  SplitMix64 random(seed);
  RequestPlan plan;
  plan.repeats = static_cast<uint32_t>(1 + random.Next() % 4);
  for (int s = 0; s < 3; ++s) {
    v1::StepPlan& step = *plan.plan.add_steps();
    for (int g = 0; g < num_groups; ++g) step.add_groups(static_cast<uint32_t>(random.Next() % 1000));
    step.add_clusters()->set_offload_headroom_bytes(random.Next());
    StepNumbers& numbers = plan.steps.emplace_back();
    numbers.denominator = static_cast<double>(random.Next()) / 3;
    numbers.loss_tokens = static_cast<int64_t>(random.Next() >> 1);
    numbers.rollout_weights.resize(random.Next() % 4);
    for (double& weight : numbers.rollout_weights) weight = 1 / static_cast<double>(random.Next());
  }
  plan.report.set_flops(static_cast<double>(random.Next()));
  plan.report.set_num_groups(static_cast<uint32_t>(num_groups));
  return plan;
}

// Expects what was read to be what was written, byte by byte.
inline void ExpectSpooled(const SpooledRequest& spooled, const TrainingRequest& request, const RequestPlan& plan,
                          const v1::Mesh& mesh) {
  const TrainingRequest& read = *spooled.request;
  EXPECT_EQ(read.kind, TrainingRequest::Kind::kUpdate);
  EXPECT_EQ(read.update.SerializeAsString(), request.update.SerializeAsString());
  EXPECT_EQ(read.digest, request.digest);
  EXPECT_EQ(read.num_steps, request.num_steps);
  EXPECT_EQ(read.num_rollouts, request.num_rollouts);
  EXPECT_EQ(read.num_tokens, request.num_tokens);
  EXPECT_EQ(read.bytes, request.bytes);
  ASSERT_EQ(read.groups.size(), request.groups.size());
  for (size_t g = 0; g < read.groups.size(); ++g) {
    ASSERT_EQ(read.groups[g].SerializeAsString(), request.groups[g].SerializeAsString()) << "group " << g;
  }
  EXPECT_EQ(spooled.plan.SerializeAsString(), plan.plan.SerializeAsString());
  EXPECT_EQ(spooled.repeats, plan.repeats);
  EXPECT_EQ(spooled.report.SerializeAsString(), plan.report.SerializeAsString());
  EXPECT_TRUE(SameMesh(spooled.mesh, mesh)) << spooled.mesh.ShortDebugString();
  ASSERT_EQ(spooled.steps.size(), plan.steps.size());
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    EXPECT_EQ(spooled.steps[i].denominator, plan.steps[i].denominator) << "step " << i;
    EXPECT_EQ(spooled.steps[i].rollout_weights, plan.steps[i].rollout_weights) << "step " << i;
    EXPECT_EQ(spooled.steps[i].num_loss_tokens, plan.steps[i].loss_tokens) << "step " << i;
  }
}

}  // namespace stemma::server
