// Requests with one wrong field each: refused by its path.
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "common/base/arrays.h"
#include "common/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/admission/sent_stream.h"

namespace stemma {
namespace {

struct BadInput {
  std::string name;
  std::string field;
  std::function<void(Stream&)> spoil;
  std::string says = "";  // part of the description
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
  EXPECT_THAT(details.violations[0].description, ::testing::HasSubstr(GetParam().says));
  if (GetParam().field.starts_with("groups[1]")) {
    EXPECT_EQ(details.uid, stream.groups[1].uid());
  }
}

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();
const std::string kR = "groups[1].rollouts[1].";  // NOLINT(runtime/string)

// Turns a good stream into one whose old log-probs are those of the rollout engine.
void ReadOldFromRollouts(Stream& stream) {
  stream.header.mutable_old()->set_from(v1::LogProbSource::ROLLOUT);
  for (v1::PromptGroup& group : stream.groups) {
    for (v1::Rollout& rollout : *group.mutable_rollouts()) {
      rollout.set_rollout_log_probs(rollout.old_log_probs());
      rollout.clear_old_log_probs();
    }
  }
}

// Turns a good stream into one of a mode that reads neither old log-probs nor the clip, with the KL term of GoodHeader.
void TakeMode(const std::string& mode, Stream& stream) {
  v1::LossConfig& loss = *stream.header.mutable_loss();
  loss.set_loss_mode(mode);
  loss.clear_clip_ratio_low();
  loss.clear_clip_ratio_high();
  loss.clear_clip_ratio_c();
  stream.header.clear_old();
  for (v1::PromptGroup& group : stream.groups) {
    for (v1::Rollout& rollout : *group.mutable_rollouts()) {
      rollout.clear_old_log_probs();
      if (mode != "cross_entropy") continue;
      rollout.clear_advantage();
      rollout.set_loss_weights(PackArray<float>({1, 1, 1}));
    }
  }
}

// Everything that a rollout can carry beside what GoodHeader reads: refused by its field, with its reader named.
INSTANTIATE_TEST_SUITE_P(
    Unread, InvalidRequestTest,
    ::testing::Values(BadInput{"RolloutLogProbsBesideOldFromClient", kR + "rollout_log_probs",
                               [](Stream& s) { s.rollout().set_rollout_log_probs(s.rollout().old_log_probs()); },
                               "only update.old from ROLLOUT reads it, and that is CLIENT"},
                      BadInput{"OldLogProbsBesideOldFromRollout", kR + "old_log_probs",
                               [](Stream& s) {
                                 ReadOldFromRollouts(s);
                                 s.rollout().set_old_log_probs(s.rollout().rollout_log_probs());
                               },
                               "only update.old from CLIENT reads it, and that is ROLLOUT"},
                      BadInput{"OldLogProbsBesideOldOnPolicy", kR + "old_log_probs",
                               [](Stream& s) {
                                 ReadOldFromRollouts(s);
                                 s.header.mutable_old()->set_from(v1::LogProbSource::ON_POLICY);
                                 for (v1::PromptGroup& group : s.groups) {
                                   for (v1::Rollout& rollout : *group.mutable_rollouts())
                                     rollout.clear_rollout_log_probs();
                                 }
                                 s.rollout().set_old_log_probs(PackArray<float>({-1, -2, -3}));
                               },
                               "only update.old from CLIENT reads it, and that is ON_POLICY"},
                      BadInput{"OldLogProbsOfAModeWithout", kR + "old_log_probs",
                               [](Stream& s) {
                                 TakeMode("gpg", s);
                                 s.rollout().set_old_log_probs(PackArray<float>({-1, -2, -3}));
                               },
                               "only update.old from CLIENT reads it, and that is absent"},
                      BadInput{"RolloutLogProbsOfAModeWithout", kR + "rollout_log_probs",
                               [](Stream& s) {
                                 TakeMode("cross_entropy", s);
                                 s.rollout().set_rollout_log_probs(PackArray<float>({-1, -2, -3}));
                               },
                               "only update.old from ROLLOUT reads it, and that is absent"},
                      BadInput{"ReferenceBesideRefFromWeights", kR + "ref_log_prob",
                               [](Stream& s) {
                                 s.header.mutable_ref()->set_from(v1::LogProbSource::WEIGHTS);
                                 s.header.mutable_ref()->set_weights("policy");
                                 for (v1::PromptGroup& group : s.groups) {
                                   for (v1::Rollout& rollout : *group.mutable_rollouts()) rollout.clear_ref_log_prob();
                                 }
                                 s.rollout().set_ref_log_prob(PackArray<float>({-1, -2, -3}));
                               },
                               "only update.ref from CLIENT reads it, and that is WEIGHTS"},
                      BadInput{"ReferenceWithoutAKlTerm", kR + "ref_log_prob",
                               [](Stream& s) {
                                 s.header.clear_ref();
                                 s.header.mutable_loss()->clear_kl_loss_coef();
                                 s.header.mutable_loss()->clear_kl_loss_type();
                                 for (v1::PromptGroup& group : s.groups) {
                                   for (v1::Rollout& rollout : *group.mutable_rollouts()) rollout.clear_ref_log_prob();
                                 }
                                 s.rollout().set_ref_log_prob(PackArray<float>({-1, -2, -3}));
                               },
                               "only update.ref from CLIENT reads it, and that is absent"},
                      BadInput{"RewardBesideAnAdvantage", kR + "reward", [](Stream& s) { s.rollout().set_reward(1); },
                               "stands beside an advantage"},
                      BadInput{"RewardBesideTokenAdvantages", kR + "reward",
                               [](Stream& s) {
                                 s.rollout().set_token_advantages(PackArray<float>({1, 1, 1}));
                                 s.rollout().set_reward(1);
                               },
                               "stands beside an advantage"},
                      BadInput{"AdvantageOfCrossEntropy", kR + "advantage",
                               [](Stream& s) {
                                 TakeMode("cross_entropy", s);
                                 s.rollout().set_advantage(1);
                               },
                               "loss_mode cross_entropy never reads it"},
                      BadInput{"TokenAdvantagesOfCrossEntropy", kR + "token_advantages",
                               [](Stream& s) {
                                 TakeMode("cross_entropy", s);
                                 s.rollout().set_token_advantages(PackArray<float>({1, 1, 1}));
                               },
                               "loss_mode cross_entropy never reads it"},
                      BadInput{"RewardOfCrossEntropy", kR + "reward",
                               [](Stream& s) {
                                 TakeMode("cross_entropy", s);
                                 s.rollout().set_reward(1);
                               },
                               "loss_mode cross_entropy never reads it"},
                      BadInput{"ImportanceWeightsOfCrossEntropy", kR + "rollout_is_weights",
                               [](Stream& s) {
                                 TakeMode("cross_entropy", s);
                                 s.rollout().set_rollout_is_weights(PackArray<float>({1, 1, 1}));
                               },
                               "loss_mode cross_entropy never reads it"},
                      BadInput{"LossWeightsOfVanilla", kR + "loss_weights",
                               [](Stream& s) {
                                 s.rollout().set_loss_weights(PackArray<float>({1, 1, 1}));
                               },
                               "loss_mode vanilla never reads it (cross_entropy does)"}),
    Name);

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
                 [](Stream& s) {
                   ReadOldFromRollouts(s);
                   s.rollout().set_rollout_log_probs(PackArray<float>({-1, -2}));
                 }},
        BadInput{"RefLogProbOfAnotherLength", kR + "ref_log_prob",
                 [](Stream& s) { s.rollout().set_ref_log_prob(PackArray<float>({-1, -2, -3, -4})); }},
        BadInput{"TokenAdvantagesOfAnotherLength", kR + "token_advantages",
                 [](Stream& s) { s.rollout().set_token_advantages(PackArray<float>({1})); }},
        BadInput{"ImportanceWeightsOfAnotherLength", kR + "rollout_is_weights",
                 [](Stream& s) { s.rollout().set_rollout_is_weights(PackArray<float>({1})); }},
        BadInput{"MissingOldLogProbs", kR + "old_log_probs", [](Stream& s) { s.rollout().clear_old_log_probs(); }},
        BadInput{"MissingRefLogProb", kR + "ref_log_prob", [](Stream& s) { s.rollout().clear_ref_log_prob(); }},
        BadInput{"MissingRefLogProbWhereOldOnesAreOfTheWeights", kR + "ref_log_prob",
                 [](Stream& s) {
                   s.header.mutable_old()->set_from(v1::LogProbSource::WEIGHTS);
                   s.header.mutable_old()->set_weights("policy");
                   for (v1::PromptGroup& group : s.groups) {
                     for (v1::Rollout& rollout : *group.mutable_rollouts()) rollout.clear_old_log_probs();
                   }
                   s.rollout().clear_ref_log_prob();
                 }},
        BadInput{"MissingAdvantage", kR + "advantage", [](Stream& s) { s.rollout().clear_advantage(); }},
        BadInput{"RewardWithoutItsNormalization", kR + "reward",
                 [](Stream& s) {
                   s.rollout().clear_advantage();
                   s.rollout().set_reward(1);
                 }},
        BadInput{"NanAdvantage", kR + "advantage", [](Stream& s) { s.rollout().set_advantage(std::nan("")); }},
        BadInput{"NanTokenAdvantage", kR + "token_advantages[1]",
                 [](Stream& s) { s.rollout().set_token_advantages(PackArray<float>({1, kNan, 3})); }},
        BadInput{"InfiniteOldLogProb", kR + "old_log_probs[0]",
                 [](Stream& s) { s.rollout().set_old_log_probs(PackArray<float>({-kInf, -2, -3})); }},
        BadInput{"NanRefLogProb", kR + "ref_log_prob[1]",
                 [](Stream& s) { s.rollout().set_ref_log_prob(PackArray<float>({-1, kNan, -3})); }},
        BadInput{"LogRatiosAsImportanceWeights", kR + "rollout_is_weights[1]",
                 [](Stream& s) { s.rollout().set_rollout_is_weights(PackArray<float>({0, -0.25f, -1})); }},
        BadInput{"InfiniteImportanceWeight", kR + "rollout_is_weights[0]",
                 [](Stream& s) { s.rollout().set_rollout_is_weights(PackArray<float>({kInf, 1, 1})); }},
        BadInput{"NanReward", kR + "reward",
                 [](Stream& s) {
                   s.header.mutable_loss()->set_normalize_advantage_std(true);
                   s.rollout().clear_advantage();
                   s.rollout().set_reward(std::nan(""));
                 }},
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
BadInput BadHeader(const std::string& name, const std::string& field, const std::function<void(Header&)>& spoil,
                   const std::string& says = "") {
  return {name, "update." + field, [spoil](Stream& s) { spoil(s.header); }, says};
}

INSTANTIATE_TEST_SUITE_P(
    Headers, InvalidRequestTest,
    ::testing::Values(
        BadHeader("RequestIdWithDots", "request.request_id",
                  [](Header& h) { h.mutable_request()->set_request_id("a/../b"); }),
        BadHeader("NoRequestId", "request.request_id", [](Header& h) { h.mutable_request()->clear_request_id(); }),
        BadHeader("NoExpectedLineage", "request.expected_lineage",
                  [](Header& h) { h.mutable_request()->set_expected_lineage(""); }),
        BadHeader("LongExpectedLineage", "request.expected_lineage",
                  [](Header& h) { h.mutable_request()->set_expected_lineage(std::string(129, 'a')); }),
        BadHeader("UnknownSchedule", "request.schedule",
                  [](Header& h) { h.mutable_request()->set_schedule(static_cast<v1::Schedule>(9)); }),
        BadHeader("UnknownOnNonfinite", "request.on_nonfinite",
                  [](Header& h) { h.mutable_request()->set_on_nonfinite(static_cast<v1::OnNonfinite>(9)); }),
        BadHeader(
            "TraceOfAPlan", "trace_step",
            [](Header& h) {
              h.mutable_request()->set_validate_only(true);
              h.set_trace_step(0);
            },
            "is set, but validate_only runs no step: leave it out"),
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
                    h.mutable_ref()->set_weights("../start");
                  }),
        BadHeader(
            "WeightsThatAreNeverRead", "old.weights", [](Header& h) { h.mutable_old()->set_weights("policy"); },
            "is set, but only from WEIGHTS reads it: leave it out"),
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
        BadHeader("UnknownDecayScope", "adam.weight_decay_scope",
                  [](Header& h) {
                    h.mutable_adam()->set_weight_decay(0);
                    h.mutable_adam()->set_weight_decay_scope(static_cast<v1::AdamParams::WeightDecayScope>(3));
                  }),
        BadHeader("MissingMaxGradNorm", "adam.max_grad_norm",
                  [](Header& h) { h.mutable_adam()->clear_max_grad_norm(); }),
        BadHeader("EmptyMiniBatches", "ppo_mini_batch_size", [](Header& h) { h.set_ppo_mini_batch_size(0); }),
        BadHeader("NoEpochs", "ppo_epochs", [](Header& h) { h.set_ppo_epochs(0); }),
        BadHeader("ShuffleWithoutSeed", "seed", [](Header& h) { h.set_shuffle(true); }),
        BadHeader(
            "SeedWithoutShuffle", "seed", [](Header& h) { h.set_seed(1); },
            "is set, but only shuffle reads it: leave it out")),
    Name);

}  // namespace
}  // namespace stemma
