// Streams of parts become requests, or are refused by field path.
#include "server/core/request_builder.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "common/arrays.h"
#include "common/error.h"
#include "common/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stemma {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kVocab = 100;
constexpr int64_t kPositions = 10;

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

// Two groups of two rollouts under a good header: each test breaks one thing of it.
struct Stream {
  v1::UpdateHeader header = GoodHeader();
  std::vector<v1::PromptGroup> groups = {GoodGroup("a"), GoodGroup("b")};
  uint64_t end_groups = 2, end_rollouts = 4;
  bool has_end = true;
  v1::Limits limits = DefaultLimits();

  v1::Rollout& rollout() { return *groups[1].mutable_rollouts(1); }
};

absl::StatusOr<std::shared_ptr<const TrainingRequest>> Build(Stream stream) {
  RequestBuilder builder(TrainingRequest::Kind::kUpdate, stream.limits, Model());
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
  return builder.Finish();
}

TEST(RequestBuilderTest, AGoodStreamBecomesARequest) {
  const auto request = Build({});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ((*request)->groups.size(), 2u);
  EXPECT_EQ((*request)->num_rollouts, 4u);
  EXPECT_EQ((*request)->num_tokens, 2u * 3 + 4 * 3);
  EXPECT_EQ((*request)->digest.size(), 64u);
}

struct BadInput {
  std::string name;
  std::string field;
  std::function<void(Stream&)> spoil;
};

std::string Name(const ::testing::TestParamInfo<BadInput>& test) { return test.param.name; }

class InvalidRequestTest : public ::testing::TestWithParam<BadInput> {};

TEST_P(InvalidRequestTest, IsRefusedByItsFieldPathAndTheRestOfTheRequestWasFine) {
  Stream stream;
  GetParam().spoil(stream);
  const absl::Status status = Build(stream).status();
  ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(ErrorReason(status), "INVALID_REQUEST");
  const ErrorDetails details = GetErrorDetails(status);
  ASSERT_EQ(details.violations.size(), 1u) << status;
  EXPECT_EQ(details.violations[0].field, GetParam().field) << status;
  if (GetParam().field.starts_with("groups[1]")) {
    EXPECT_EQ(details.uid, stream.groups[1].uid());
  }
}

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();
const std::string kR = "groups[1].rollouts[1].";  // NOLINT(runtime/string)

INSTANTIATE_TEST_SUITE_P(
    Payload, InvalidRequestTest,
    ::testing::Values(
        BadInput{"TokenBeyondTheVocabulary", kR + "response_tokens[1]",
                 [](Stream& s) { s.rollout().set_response_tokens(PackArray<int32_t>({7, 100, 9})); }},
        BadInput{"NegativeToken", kR + "response_tokens[0]",
                 [](Stream& s) { s.rollout().set_response_tokens(PackArray<int32_t>({-1, 8, 9})); }},
        BadInput{"PromptTokenBeyondTheVocabulary", "groups[1].prompt_tokens[2]",
                 [](Stream& s) { s.groups[1].set_prompt_tokens(PackArray<int32_t>({1, 2, 1000})); }},
        BadInput{"EmptyPrompt", "groups[1].prompt_tokens", [](Stream& s) { s.groups[1].clear_prompt_tokens(); }},
        BadInput{"HalfAToken", "groups[1].prompt_tokens",
                 [](Stream& s) { s.groups[1].mutable_prompt_tokens()->append("x"); }},
        BadInput{"BeyondTheModelsPositions", kR + "response_tokens",
                 [](Stream& s) {
                   v1::Rollout& rollout = s.rollout();
                   rollout.set_response_tokens(PackArray<int32_t>(std::vector<int32_t>(8, 5)));
                   rollout.clear_response_mask();
                   rollout.set_old_log_probs(PackArray<float>(std::vector<float>(8, -1)));
                   rollout.set_ref_log_prob(PackArray<float>(std::vector<float>(8, -1)));
                 }},
        BadInput{"ShortMask", kR + "response_mask", [](Stream& s) { s.rollout().set_response_mask("ab"); }},
        BadInput{"MaskBitsBeyondTheResponse", kR + "response_mask",
                 [](Stream& s) { s.rollout().set_response_mask("\xff"); }},
        BadInput{"OldLogProbsOfAnotherLength", kR + "old_log_probs",
                 [](Stream& s) { s.rollout().set_old_log_probs(PackArray<float>({-1, -2})); }},
        BadInput{"RolloutLogProbsOfAnotherLength", kR + "rollout_log_probs",
                 [](Stream& s) { s.rollout().set_rollout_log_probs(PackArray<float>({-1, -2})); }},
        BadInput{"RefLogProbOfAnotherLength", kR + "ref_log_prob",
                 [](Stream& s) { s.rollout().set_ref_log_prob(PackArray<float>({-1, -2, -3, -4})); }},
        BadInput{"TokenAdvantagesOfAnotherLength", kR + "token_advantages",
                 [](Stream& s) { s.rollout().set_token_advantages(PackArray<float>({1})); }},
        BadInput{"ImportanceWeightsOfAnotherLength", kR + "rollout_is_weights",
                 [](Stream& s) { s.rollout().set_rollout_is_weights(PackArray<float>({1})); }},
        BadInput{"MissingOldLogProbs", kR + "old_log_probs", [](Stream& s) { s.rollout().clear_old_log_probs(); }},
        BadInput{"MissingRefLogProb", kR + "ref_log_prob", [](Stream& s) { s.rollout().clear_ref_log_prob(); }},
        BadInput{"MissingAdvantage", kR + "advantage", [](Stream& s) { s.rollout().clear_advantage(); }},
        BadInput{"RewardWithoutItsNormalization", kR + "reward",
                 [](Stream& s) {
                   s.rollout().clear_advantage();
                   s.rollout().set_reward(1);
                 }},
        BadInput{"NanAdvantage", kR + "advantage", [](Stream& s) { s.rollout().set_advantage(std::nan("")); }},
        BadInput{"NanTokenAdvantage", kR + "token_advantages[2]",
                 [](Stream& s) { s.rollout().set_token_advantages(PackArray<float>({1, 2, kNan})); }},
        BadInput{"InfiniteOldLogProb", kR + "old_log_probs[0]",
                 [](Stream& s) { s.rollout().set_old_log_probs(PackArray<float>({-kInf, -2, -3})); }},
        BadInput{"NanRefLogProb", kR + "ref_log_prob[1]",
                 [](Stream& s) { s.rollout().set_ref_log_prob(PackArray<float>({-1, kNan, -3})); }},
        BadInput{"InfiniteImportanceWeight", kR + "rollout_is_weights[0]",
                 [](Stream& s) { s.rollout().set_rollout_is_weights(PackArray<float>({kInf, 1, 1})); }},
        BadInput{"NanReward", kR + "reward", [](Stream& s) { s.rollout().set_reward(std::nan("")); }},
        BadInput{"LossWeightsThatTheModeNeverReads", kR + "loss_weights",
                 [](Stream& s) { s.rollout().set_loss_weights(PackArray<float>({1, 1, 1})); }},
        BadInput{"DuplicateUid", "groups[1].uid", [](Stream& s) { s.groups[1].set_uid("a"); }},
        BadInput{"DuplicateRolloutId", kR + "rollout_id", [](Stream& s) { s.rollout().set_rollout_id("a/0"); }},
        BadInput{"EmptyUid", "groups[1].uid", [](Stream& s) { s.groups[1].clear_uid(); }},
        BadInput{"EmptyRolloutId", kR + "rollout_id", [](Stream& s) { s.rollout().clear_rollout_id(); }},
        BadInput{"LongUid", "groups[1].uid",
                 [](Stream& s) {
                   s.limits.set_string_bytes(5);
                   s.groups[1].set_uid("abcdef");
                 }},
        BadInput{"GroupWithoutRollouts", "groups[1].rollouts",
                 [](Stream& s) {
                   s.groups[1].clear_rollouts();
                   s.end_rollouts = 2;
                 }},
        BadInput{"NoGroups", "groups",
                 [](Stream& s) {
                   s.groups.clear();
                   s.end_groups = s.end_rollouts = 0;
                 }}),
    Name);

using Header = v1::UpdateHeader;
BadInput BadHeader(const std::string& name, const std::string& field, const std::function<void(Header&)>& spoil) {
  return {name, "update." + field, [spoil](Stream& s) { spoil(s.header); }};
}

INSTANTIATE_TEST_SUITE_P(
    Headers, InvalidRequestTest,
    ::testing::Values(
        BadHeader("RequestIdWithDots", "request.request_id",
                  [](Header& h) { h.mutable_request()->set_request_id("a/../b"); }),
        BadHeader("NoRequestId", "request.request_id", [](Header& h) { h.mutable_request()->clear_request_id(); }),
        BadHeader("UnknownSchedule", "request.schedule",
                  [](Header& h) { h.mutable_request()->set_schedule(static_cast<v1::Schedule>(9)); }),
        BadHeader("UnknownOnNonfinite", "request.on_nonfinite",
                  [](Header& h) { h.mutable_request()->set_on_nonfinite(static_cast<v1::OnNonfinite>(9)); }),
        BadHeader("UnknownLoss", "loss.loss_mode", [](Header& h) { h.mutable_loss()->set_loss_mode("ppo"); }),
        BadHeader("UnknownAggregation", "loss.loss_agg_mode",
                  [](Header& h) { h.mutable_loss()->set_loss_agg_mode("mean"); }),
        BadHeader("UnknownKl", "loss.kl_loss_type", [](Header& h) { h.mutable_loss()->set_kl_loss_type("full"); }),
        BadHeader("MissingClip", "loss.clip_ratio_high", [](Header& h) { h.mutable_loss()->clear_clip_ratio_high(); }),
        BadHeader("NegativeClip", "loss.clip_ratio_low", [](Header& h) { h.mutable_loss()->set_clip_ratio_low(-0.1); }),
        BadHeader("NanClip", "loss.clip_ratio_low",
                  [](Header& h) { h.mutable_loss()->set_clip_ratio_low(std::nan("")); }),
        BadHeader("DualClipOfOne", "loss.clip_ratio_c", [](Header& h) { h.mutable_loss()->set_clip_ratio_c(1); }),
        BadHeader("DualClipThatGspoNeverReads", "loss.clip_ratio_c",
                  [](Header& h) { h.mutable_loss()->set_loss_mode("gspo"); }),
        BadHeader("MissingTemperature", "loss.temperature", [](Header& h) { h.mutable_loss()->clear_temperature(); }),
        BadHeader("ZeroTemperature", "loss.temperature", [](Header& h) { h.mutable_loss()->set_temperature(0); }),
        BadHeader("MissingScaleFactor", "loss.loss_scale_factor",
                  [](Header& h) { h.mutable_loss()->set_loss_agg_mode("seq-mean-token-sum-norm"); }),
        BadHeader("ScaleFactorThatIsNeverRead", "loss.loss_scale_factor",
                  [](Header& h) { h.mutable_loss()->set_loss_scale_factor(4); }),
        BadHeader("MissingKlCoefficient", "loss.kl_loss_coef",
                  [](Header& h) { h.mutable_loss()->clear_kl_loss_coef(); }),
        BadHeader("MissingKlType", "loss.kl_loss_type", [](Header& h) { h.mutable_loss()->clear_kl_loss_type(); }),
        BadHeader("KlWithoutReference", "ref", [](Header& h) { h.clear_ref(); }),
        BadHeader("ReferenceFromRollouts", "ref.from",
                  [](Header& h) { h.mutable_ref()->set_from(v1::LogProbSource::ROLLOUT); }),
        BadHeader("UnknownWeights", "ref.weights",
                  [](Header& h) {
                    h.mutable_ref()->set_from(v1::LogProbSource::WEIGHTS);
                    h.mutable_ref()->set_weights("ref");
                  }),
        BadHeader("WeightsThatAreNeverRead", "old.weights", [](Header& h) { h.mutable_old()->set_weights("policy"); }),
        BadHeader("MissingOld", "old", [](Header& h) { h.clear_old(); }),
        BadHeader("OldFromNowhere", "old.from",
                  [](Header& h) { h.mutable_old()->set_from(v1::LogProbSource::FROM_UNSPECIFIED); }),
        BadHeader("InfiniteEntropyCoefficient", "loss.entropy_coeff",
                  [](Header& h) { h.mutable_loss()->set_entropy_coeff(kInf); }),
        BadHeader("MissingLearningRate", "adam.learning_rate",
                  [](Header& h) { h.mutable_adam()->clear_learning_rate(); }),
        BadHeader("NegativeLearningRate", "adam.learning_rate",
                  [](Header& h) { h.mutable_adam()->set_learning_rate(-1); }),
        BadHeader("BetaOfOne", "adam.beta2", [](Header& h) { h.mutable_adam()->set_beta2(1); }),
        BadHeader("MissingBeta", "adam.beta1", [](Header& h) { h.mutable_adam()->clear_beta1(); }),
        BadHeader("ZeroEps", "adam.eps", [](Header& h) { h.mutable_adam()->set_eps(0); }),
        BadHeader("MissingDecayScope", "adam.weight_decay_scope",
                  [](Header& h) { h.mutable_adam()->clear_weight_decay_scope(); }),
        BadHeader("MissingMaxGradNorm", "adam.max_grad_norm",
                  [](Header& h) { h.mutable_adam()->clear_max_grad_norm(); }),
        BadHeader("EmptyMiniBatches", "ppo_mini_batch_size", [](Header& h) { h.set_ppo_mini_batch_size(0); }),
        BadHeader("NoEpochs", "ppo_epochs", [](Header& h) { h.set_ppo_epochs(0); }),
        BadHeader("ShuffleWithoutSeed", "seed", [](Header& h) { h.set_shuffle(true); }),
        BadHeader("SeedWithoutShuffle", "seed", [](Header& h) { h.set_seed(1); })),
    Name);

struct BadStream {
  std::string name;
  absl::StatusCode code;
  std::string reason;
  std::function<void(Stream&)> spoil;
};

std::string StreamName(const ::testing::TestParamInfo<BadStream>& test) { return test.param.name; }

class RefusedStreamTest : public ::testing::TestWithParam<BadStream> {};

TEST_P(RefusedStreamTest, HasItsReason) {
  Stream stream;
  GetParam().spoil(stream);
  const absl::Status status = Build(stream).status();
  EXPECT_EQ(status.code(), GetParam().code) << status;
  EXPECT_EQ(ErrorReason(status), GetParam().reason) << status;
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

INSTANTIATE_TEST_SUITE_P(
    Streams, RefusedStreamTest,
    ::testing::Values(
        BadStream{"CutBeforeItsEnd", kInvalid, "SHORT_STREAM", [](Stream& s) { s.has_end = false; }},
        BadStream{"FewerGroupsThanItsEndSays", kInvalid, "SHORT_STREAM", [](Stream& s) { s.end_groups = 3; }},
        BadStream{"FewerRolloutsThanItsEndSays", kInvalid, "SHORT_STREAM", [](Stream& s) { s.end_rollouts = 5; }},
        BadStream{"FewerGroupsThanItsHeaderSays", kInvalid, "SHORT_STREAM",
                  [](Stream& s) { s.header.set_num_groups(3); }},
        BadStream{"TooManyGroups", kExhausted, "LIMIT_EXCEEDED", [](Stream& s) { s.limits.set_groups(1); }},
        BadStream{"TooManyRollouts", kExhausted, "LIMIT_EXCEEDED", [](Stream& s) { s.limits.set_rollouts(3); }},
        BadStream{"TooManyTokens", kExhausted, "LIMIT_EXCEEDED", [](Stream& s) { s.limits.set_tokens(17); }},
        BadStream{"TooManySteps", kExhausted, "LIMIT_EXCEEDED",
                  [](Stream& s) {
                    s.limits.set_steps(4);
                    s.header.set_ppo_mini_batch_size(1);
                    s.header.set_ppo_epochs(3);
                  }},
        BadStream{"OnPolicyWithSeveralSteps", absl::StatusCode::kFailedPrecondition, "UNSUPPORTED",
                  [](Stream& s) {
                    s.header.mutable_old()->set_from(v1::LogProbSource::ON_POLICY);
                    s.header.set_ppo_epochs(2);
                  }}),
    StreamName);

TEST(RequestBuilderTest, EveryProblemIsCountedAndTheFirstTwentyTravel) {
  Stream stream;
  stream.groups[0].clear_rollouts();
  for (int i = 0; i < 30; ++i) {
    v1::Rollout rollout = GoodRollout("r" + std::to_string(i));
    rollout.set_advantage(std::nan(""));
    *stream.groups[0].add_rollouts() = rollout;
  }
  stream.header.mutable_adam()->clear_eps();
  stream.end_rollouts = 32;
  const ErrorDetails details = GetErrorDetails(Build(stream).status());
  EXPECT_EQ(details.violations.size(), 20u);
  EXPECT_EQ(details.violations[0].field, "update.adam.eps");
  EXPECT_EQ(details.metadata.at("violations"), "31");
}

TEST(RequestBuilderTest, LongNamesOfAClientAreCutInErrors) {
  Stream stream;
  stream.header.mutable_loss()->set_loss_mode(std::string(1 << 20, 'x'));
  EXPECT_LT(ToRpcStatus(Build(stream).status()).ByteSizeLong(), 4096u);
}

TEST(RequestBuilderTest, MoreContinuesTheRolloutsOfItsGroupUnderTheSameDigest) {
  RequestBuilder builder(TrainingRequest::Kind::kUpdate, DefaultLimits(), Model());
  v1::GroupPart part;
  *part.mutable_update() = GoodHeader();
  ASSERT_TRUE(builder.Add(part).ok());
  for (const char* uid : {"a", "b"}) {
    v1::PromptGroup group = GoodGroup(uid);
    group.mutable_rollouts()->RemoveLast();
    *part.mutable_group() = group;
    ASSERT_TRUE(builder.Add(part).ok());
  }
  for (const char* uid : {"a", "b"}) {
    part.mutable_more()->set_uid(uid);
    part.mutable_more()->clear_rollouts();
    *part.mutable_more()->add_rollouts() = GoodGroup(uid).rollouts(1);
    ASSERT_TRUE(builder.Add(part).ok());
  }
  part.mutable_end()->set_num_groups(2);
  part.mutable_end()->set_num_rollouts(4);
  ASSERT_TRUE(builder.Add(part).ok());
  const auto request = builder.Finish();
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ((*request)->digest, (*Build({}))->digest);
  EXPECT_EQ((*request)->groups[1].rollouts(1).rollout_id(), "b/1");
}

absl::Status AddOnly(const std::vector<std::function<void(v1::GroupPart&)>>& fills) {
  RequestBuilder builder(TrainingRequest::Kind::kUpdate, DefaultLimits(), Model());
  for (const auto& fill : fills) {
    v1::GroupPart part;
    fill(part);
    if (absl::Status status = builder.Add(part); !status.ok()) return status;
  }
  return builder.Finish().status();
}

TEST(RequestBuilderTest, PartsOutOfOrderAreAShortStream) {
  const auto header = [](v1::GroupPart& part) { *part.mutable_update() = GoodHeader(); };
  const auto group = [](v1::GroupPart& part) { *part.mutable_group() = GoodGroup("a"); };
  const auto end = [](v1::GroupPart& part) { part.mutable_end()->set_num_groups(1); };
  const auto more = [](v1::GroupPart& part) { part.mutable_more()->set_uid("nobody"); };
  const auto wrong_header = [](v1::GroupPart& part) { part.mutable_log_prob(); };
  const auto nothing = [](v1::GroupPart&) {};
  using Fills = std::vector<std::function<void(v1::GroupPart&)>>;
  for (const Fills& fills : {Fills{}, Fills{group}, Fills{end}, Fills{header, header}, Fills{header, more},
                             Fills{header, group, end, group}, Fills{wrong_header}, Fills{header, nothing}}) {
    EXPECT_EQ(ErrorReason(AddOnly(fills)), "SHORT_STREAM");
  }
}

TEST(RequestBuilderTest, RewardsBecomeAdvantagesAndTheDigestIsOfWhatWasSent) {
  Stream stream;
  stream.header.mutable_loss()->set_normalize_advantage_std(false);
  for (v1::PromptGroup& group : stream.groups) {
    for (int i = 0; i < 2; ++i) {
      group.mutable_rollouts(i)->clear_advantages();
      group.mutable_rollouts(i)->set_reward(i);
    }
  }
  const auto request = Build(stream);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ((*request)->groups[0].rollouts(0).advantage(), -0.5);
  EXPECT_EQ((*request)->digest, DigestOf(stream.header, stream.groups));
}

TEST(RequestBuilderTest, AResponseMayBeEmpty) {
  Stream stream;
  v1::Rollout& rollout = stream.rollout();
  rollout.clear_response_tokens();
  rollout.clear_response_mask();
  rollout.clear_old_log_probs();
  rollout.clear_ref_log_prob();
  EXPECT_TRUE(Build(stream).ok());
}

TEST(RequestBuilderTest, CrossEntropyNeedsItsWeightsAndReadsNoAdvantage) {
  Stream stream;
  stream.header.mutable_loss()->set_loss_mode("cross_entropy");
  stream.header.mutable_loss()->clear_clip_ratio_low();
  stream.header.mutable_loss()->clear_clip_ratio_high();
  stream.header.mutable_loss()->clear_clip_ratio_c();
  stream.header.clear_old();
  for (v1::PromptGroup& group : stream.groups) {
    for (v1::Rollout& rollout : *group.mutable_rollouts()) {
      rollout.clear_advantages();
      rollout.set_loss_weights(PackArray<float>({1, -1, 1}));
    }
  }
  EXPECT_TRUE(Build(stream).ok()) << Build(stream).status();
  stream.rollout().set_advantage(1);
  EXPECT_EQ(GetErrorDetails(Build(stream).status()).violations.at(0).field, kR + "advantage");
  stream.rollout().clear_advantages();
  stream.rollout().clear_loss_weights();
  EXPECT_EQ(GetErrorDetails(Build(stream).status()).violations.at(0).field, kR + "loss_weights");
}

absl::Status BuildLogProb(const std::function<void(v1::LogProbHeader&)>& spoil) {
  RequestBuilder builder(TrainingRequest::Kind::kLogProb, DefaultLimits(), Model());
  std::vector<v1::GroupPart> parts(3);
  v1::LogProbHeader& header = *parts[0].mutable_log_prob();
  header.set_weights("policy");
  header.set_temperature(1);
  spoil(header);
  *parts[1].mutable_group() = GoodGroup("a");
  parts[2].mutable_end()->set_num_groups(1);
  parts[2].mutable_end()->set_num_rollouts(2);
  for (v1::GroupPart& part : parts) {
    if (absl::Status status = builder.Add(part); !status.ok()) return status;
  }
  return builder.Finish().status();
}

TEST(RequestBuilderTest, ALogProbHeaderIsCheckedToo) {
  EXPECT_TRUE(BuildLogProb([](v1::LogProbHeader&) {}).ok());
  const auto field = [](const std::function<void(v1::LogProbHeader&)>& spoil) {
    return GetErrorDetails(BuildLogProb(spoil)).violations.at(0).field;
  };
  EXPECT_EQ(field([](v1::LogProbHeader& h) { h.set_weights("ref"); }), "log_prob.weights");
  EXPECT_EQ(field([](v1::LogProbHeader& h) { h.clear_temperature(); }), "log_prob.temperature");
  EXPECT_EQ(field([](v1::LogProbHeader& h) { h.mutable_request()->set_wait_ms(1); }), "log_prob.request.wait_ms");
  EXPECT_EQ(field([](v1::LogProbHeader& h) { h.mutable_request()->set_validate_only(true); }),
            "log_prob.request.validate_only");
}

}  // namespace
}  // namespace stemma
