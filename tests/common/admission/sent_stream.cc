#include "tests/common/admission/sent_stream.h"

#include "common/admission/request_builder.h"
#include "common/base/arrays.h"
#include "common/base/run_config.h"

namespace stemma {

ModelConfig Model() {
  ModelConfig model;
  model.vocab_size = kVocab;
  model.max_positions = kPositions;
  return model;
}

v1::Limits DefaultLimits() {
  v1::RunConfig config;
  FillDefaults(config);
  return config.limits();
}

v1::UpdateHeader GoodHeader() {
  v1::UpdateHeader header;
  header.mutable_request()->set_request_id("run/1");
  v1::LossConfig& loss = *header.mutable_loss();
  loss.set_loss_mode("vanilla");
  loss.set_clip_ratio_low(0.2);
  loss.set_clip_ratio_high(0.2);
  loss.set_clip_ratio_c(3);
  loss.set_loss_agg_mode("token-mean");
  loss.set_kl_loss_coef(0.001);
  loss.set_kl_loss_type("low_var_kl");
  loss.set_temperature(1);
  v1::AdamParams& adam = *header.mutable_adam();
  adam.set_learning_rate(1e-6);
  adam.set_beta1(0.9);
  adam.set_beta2(0.999);
  adam.set_eps(1e-8);
  adam.set_weight_decay(0.01);
  adam.set_weight_decay_scope(v1::AdamParams::ALL);
  adam.set_max_grad_norm(1);
  header.mutable_old()->set_from(v1::LogProbSource::CLIENT);
  header.mutable_ref()->set_from(v1::LogProbSource::CLIENT);
  return header;
}

v1::Rollout GoodRollout(const std::string& id) {
  v1::Rollout rollout;
  rollout.set_rollout_id(id);
  rollout.set_response_tokens(PackArray<int32_t>({7, 8, 9}));
  rollout.set_response_mask(PackMask({true, true, false}));
  rollout.set_old_log_probs(PackArray<float>({-1, -2, -3}));
  rollout.set_ref_log_prob(PackArray<float>({-1, -2, -3}));
  rollout.set_advantage(0.5);
  return rollout;
}

v1::PromptGroup GoodGroup(const std::string& uid) {
  v1::PromptGroup group;
  group.set_uid(uid);
  group.set_prompt_tokens(PackArray<int32_t>({1, 2, 3}));
  for (int i = 0; i < 2; ++i) *group.add_rollouts() = GoodRollout(uid + "/" + std::to_string(i));
  return group;
}

absl::StatusOr<std::shared_ptr<const TrainingRequest>> Build(Stream stream) {
  ModelConfig model = Model();
  model.max_positions = stream.positions;
  RequestBuilder builder(stream.kind, stream.limits, model, stream.numbers);
  std::vector<v1::GroupPart> parts(1);
  *parts[0].mutable_update() = stream.header;
  for (v1::PromptGroup& group : stream.groups) *parts.emplace_back().mutable_group() = group;
  if (stream.has_end) {
    parts.emplace_back().mutable_end()->set_num_groups(stream.end_groups);
    parts.back().mutable_end()->set_num_rollouts(stream.end_rollouts);
  }
  for (v1::GroupPart& part : parts) {
    if (absl::Status status = builder.Add(part); !status.ok()) return status;
  }
  auto built = builder.Finish();
  if (built.ok() && !(*built)->refused.ok()) return (*built)->refused;
  return built;
}

}  // namespace stemma
