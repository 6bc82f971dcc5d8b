// Streams of parts become requests, or are refused by field path.
#include "common/admission/request_builder.h"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "common/base/arrays.h"
#include "common/base/digest.h"
#include "common/base/error.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "tests/common/admission/sent_stream.h"

namespace stemma {
namespace {

TEST(RequestBuilderTest, AGoodStreamBecomesARequest) {
  const auto request = Build({});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ((*request)->groups.size(), 2u);
  EXPECT_EQ((*request)->num_rollouts, 4u);
  EXPECT_EQ((*request)->num_tokens, 2u * 3 + 4 * 3);
  EXPECT_EQ((*request)->digest.size(), 64u);
}

TEST(RequestBuilderTest, FromTheFirstProblemOnOnlyNamesAreKept) {
  RequestBuilder builder(TrainingRequest::Kind::kUpdate, DefaultLimits(), Model(), NumbersOfRun(RunDtype::kFp32));
  const auto add = [&](v1::PromptGroup group) {
    v1::GroupPart part;
    *part.mutable_group() = std::move(group);
    EXPECT_TRUE(builder.Add(part).ok());
    return builder.kept_bytes();
  };
  v1::GroupPart header;
  *header.mutable_update() = GoodHeader();
  ASSERT_TRUE(builder.Add(header).ok());
  v1::PromptGroup large = GoodGroup("a");
  for (int i = 0; i < 1000; ++i) *large.add_rollouts() = GoodRollout("long/" + std::to_string(i));
  const uint64_t kept = add(large);
  EXPECT_GT(kept, large.ByteSizeLong());
  v1::PromptGroup bad = GoodGroup("b");
  bad.mutable_rollouts(0)->set_response_mask(std::string(1 << 20, 'x'));
  EXPECT_LT(add(bad), kept / 2) << "ids stay";
  EXPECT_LT(add(GoodGroup("c")), kept / 2);
  const uint64_t before = add(GoodGroup("a"));
  EXPECT_LT(before, kept / 2) << "which tells that this uid came before";
  const uint64_t of_short = add(GoodGroup("d")) - before;
  const uint64_t of_long = add(GoodGroup(std::string(200, 'e'))) - before - of_short;
  EXPECT_EQ(of_long, of_short + 3 * 199) << "its uid, and the ids of its two rollouts";
  EXPECT_EQ(GetErrorDetails(builder.Finish().status()).metadata.count("violations"), 0u) << "it was cut";
}

uint64_t KeptOfHeader(const v1::UpdateHeader& header) {
  RequestBuilder builder(TrainingRequest::Kind::kUpdate, DefaultLimits(), Model(), NumbersOfRun(RunDtype::kFp32));
  v1::GroupPart part;
  *part.mutable_update() = header;
  EXPECT_TRUE(builder.Add(part).ok());
  return builder.kept_bytes();
}

TEST(RequestBuilderTest, AHeaderCountsAsKeptUntilItIsRefused) {
  v1::UpdateHeader header = GoodHeader();
  header.mutable_request()->set_request_id("a");
  const uint64_t kept = KeptOfHeader(header);
  EXPECT_GE(kept, header.ByteSizeLong());
  header.mutable_request()->set_request_id(std::string(100, 'a'));
  EXPECT_GE(KeptOfHeader(header), kept + 100);
  v1::UpdateHeader unknown = header;
  for (int i = 0; i < 1000; ++i) unknown.GetReflection()->MutableUnknownFields(&unknown)->AddGroup(30);
  EXPECT_EQ(KeptOfHeader(unknown), 0u) << "fields that nobody knows take ten times their bytes in memory";
  header.mutable_loss()->set_loss_mode(std::string(60'000, 'a'));
  EXPECT_EQ(KeptOfHeader(header), 0u);
}

// A newer client means something by a field that this server does not know, wherever it stands.
TEST(RequestBuilderTest, FieldsThatNobodyKnowsAreRefusedInEveryPart) {
  for (const char* where : {"end", "groups[0].more"}) {
    RequestBuilder builder(TrainingRequest::Kind::kUpdate, DefaultLimits(), Model(), NumbersOfRun(RunDtype::kFp32));
    v1::GroupPart header, group, more, end;
    *header.mutable_update() = GoodHeader();
    *group.mutable_group() = GoodGroup("a");
    more.mutable_more()->set_uid("a");
    *more.mutable_more()->add_rollouts() = GoodRollout("more");
    end.mutable_end()->set_num_groups(1);
    end.mutable_end()->set_num_rollouts(3);
    google::protobuf::Message* const with =
        where == std::string("end") ? static_cast<google::protobuf::Message*>(end.mutable_end()) : more.mutable_more();
    with->GetReflection()->MutableUnknownFields(with)->AddVarint(30, 1);
    for (v1::GroupPart* part : {&header, &group, &more, &end}) ASSERT_TRUE(builder.Add(*part).ok()) << where;
    const ErrorDetails details = GetErrorDetails(builder.Finish().status());
    ASSERT_EQ(details.violations.size(), 1u) << where;
    EXPECT_EQ(details.violations[0].field, where);
  }
}

TEST(RequestBuilderTest, TheEndOfAStreamIsHeldAgainstARefusedHeaderToo) {
  Stream stream;
  stream.header.mutable_loss()->set_loss_mode("none");
  EXPECT_EQ(ErrorReason(Build(stream).status()), "INVALID_REQUEST");
  stream.header.set_num_groups(3);
  EXPECT_EQ(ErrorReason(Build(stream).status()), "SHORT_STREAM");
}

TEST(RequestBuilderTest, NumbersAtTheEndOfTheirRangeAreAccepted) {
  Stream stream;
  stream.header.mutable_loss()->set_clip_ratio_low(0);
  stream.header.mutable_loss()->set_clip_ratio_high(0);
  stream.header.mutable_adam()->set_learning_rate(0);
  stream.header.mutable_adam()->set_weight_decay(0);
  stream.header.mutable_adam()->set_max_grad_norm(0);
  stream.header.mutable_adam()->set_beta1(0);
  EXPECT_TRUE(Build(stream).ok()) << Build(stream).status();
}

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
                    for (v1::PromptGroup& group : s.groups) {
                      for (v1::Rollout& rollout : *group.mutable_rollouts()) rollout.clear_old_log_probs();
                    }
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
  RequestBuilder builder(TrainingRequest::Kind::kUpdate, DefaultLimits(), Model(), RunNumbers());
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

TEST(RequestBuilderTest, AProblemInMoreIsNamedByItsPlaceInTheGroup) {
  RequestBuilder builder(TrainingRequest::Kind::kUpdate, DefaultLimits(), Model(), RunNumbers());
  v1::GroupPart part;
  *part.mutable_update() = GoodHeader();
  ASSERT_TRUE(builder.Add(part).ok());
  *part.mutable_group() = GoodGroup("a");
  ASSERT_TRUE(builder.Add(part).ok());
  part.mutable_more()->set_uid("a");
  *part.mutable_more()->add_rollouts() = GoodRollout("third");
  *part.mutable_more()->add_rollouts() = GoodRollout("fourth");
  part.mutable_more()->mutable_rollouts(1)->set_advantage(std::nan(""));
  ASSERT_TRUE(builder.Add(part).ok());
  part.mutable_end()->set_num_groups(1);
  part.mutable_end()->set_num_rollouts(4);
  ASSERT_TRUE(builder.Add(part).ok());
  const ErrorDetails details = GetErrorDetails(builder.Finish().status());
  ASSERT_EQ(details.violations.size(), 1u);
  EXPECT_EQ(details.violations[0].field, "groups[0].rollouts[3].advantage");
}

absl::Status AddOnly(const std::vector<std::function<void(v1::GroupPart&)>>& fills) {
  RequestBuilder builder(TrainingRequest::Kind::kUpdate, DefaultLimits(), Model(), RunNumbers());
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
  const auto right_end = [](v1::GroupPart& part) {
    part.mutable_end()->set_num_groups(1);
    part.mutable_end()->set_num_rollouts(2);
  };
  EXPECT_TRUE(AddOnly({header, group, right_end}).ok()) << "control";
  EXPECT_EQ(ErrorReason(AddOnly({header, right_end, group})), "SHORT_STREAM") << "all of it came, behind its end";
}

TEST(RequestBuilderTest, AHeaderMayHaveSixtyFourKiB) {
  v1::GroupPart part;
  *part.mutable_update() = GoodHeader();
  const auto add = [&part](size_t bytes) {
    std::string& mode = *part.mutable_update()->mutable_loss()->mutable_loss_mode();
    mode.assign(bytes, 'a');
    mode.resize(2 * bytes - part.ByteSizeLong(), 'a');
    EXPECT_EQ(part.ByteSizeLong(), bytes);
    RequestBuilder builder(TrainingRequest::Kind::kUpdate, DefaultLimits(), Model(), RunNumbers());
    return builder.Add(part);
  };
  EXPECT_TRUE(add(64 << 10).ok()) << "what is wrong in it is said at the stream's end";
  const absl::Status refused = add((64 << 10) + 1);
  EXPECT_EQ(GetErrorDetails(refused).violations.at(0).field, "update") << refused;
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
      rollout.clear_old_log_probs();
      rollout.set_loss_weights(PackArray<float>({1, -1, 1}));
    }
  }
  EXPECT_TRUE(Build(stream).ok()) << Build(stream).status();
  stream.rollout().set_advantage(1);
  EXPECT_EQ(GetErrorDetails(Build(stream).status()).violations.at(0).field, "groups[1].rollouts[1].advantage");
  stream.rollout().clear_advantages();
  stream.rollout().clear_loss_weights();
  EXPECT_EQ(GetErrorDetails(Build(stream).status()).violations.at(0).field, "groups[1].rollouts[1].loss_weights");
}

absl::Status BuildVerification(const std::function<void(v1::UpdateHeader&)>& spoil) {
  Stream stream;
  stream.kind = TrainingRequest::Kind::kVerify;
  spoil(stream.header);
  return Build(stream).status();
}

TEST(RequestBuilderTest, AVerificationIsOneStepAndNothingIsSentThatItDoesNotRead) {
  EXPECT_TRUE(BuildVerification([](v1::UpdateHeader&) {}).ok());
  EXPECT_TRUE(BuildVerification([](v1::UpdateHeader& h) { h.mutable_request()->set_schedule(v1::AUTO); }).ok());
  const auto field = [](const std::function<void(v1::UpdateHeader&)>& spoil) {
    return GetErrorDetails(BuildVerification(spoil)).violations.at(0).field;
  };
  EXPECT_EQ(field([](v1::UpdateHeader& h) { h.mutable_request()->set_schedule(v1::DENSE); }),
            "update.request.schedule");
  EXPECT_EQ(field([](v1::UpdateHeader& h) { h.mutable_request()->set_validate_only(true); }),
            "update.request.validate_only");
  EXPECT_EQ(field([](v1::UpdateHeader& h) { h.mutable_request()->set_wait_ms(0); }), "update.request.wait_ms");
  EXPECT_EQ(field([](v1::UpdateHeader& h) { h.mutable_request()->set_on_nonfinite(v1::SKIP); }),
            "update.request.on_nonfinite");
  EXPECT_EQ(field([](v1::UpdateHeader& h) { h.set_trace_step(0); }), "update.trace_step");
  EXPECT_EQ(field([](v1::UpdateHeader& h) { h.set_return_log_probs(true); }), "update.return_log_probs");
  const absl::Status steps = BuildVerification([](v1::UpdateHeader& h) { h.set_ppo_epochs(2); });
  EXPECT_TRUE(HasReason(steps, Reason::kInvalidRequest)) << steps;
  EXPECT_EQ(GetErrorDetails(steps).violations.at(0).field, "update.ppo_mini_batch_size");
}

absl::Status BuildLogProb(const std::function<void(v1::LogProbHeader&)>& spoil) {
  RequestBuilder builder(TrainingRequest::Kind::kLogProb, DefaultLimits(), Model(), RunNumbers());
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
  EXPECT_EQ(field([](v1::LogProbHeader& h) { h.set_weights("../start"); }), "log_prob.weights");
  EXPECT_EQ(field([](v1::LogProbHeader& h) { h.clear_weights(); }), "log_prob.weights");
  EXPECT_TRUE(BuildLogProb([](v1::LogProbHeader& h) { h.set_weights("step-00000120"); }).ok());
  EXPECT_EQ(field([](v1::LogProbHeader& h) { h.clear_temperature(); }), "log_prob.temperature");
  EXPECT_EQ(field([](v1::LogProbHeader& h) { h.mutable_request()->set_expected_lineage("a b"); }),
            "log_prob.request.expected_lineage");
  EXPECT_EQ(field([](v1::LogProbHeader& h) { h.mutable_request()->set_wait_ms(1); }), "log_prob.request.wait_ms");
  EXPECT_EQ(field([](v1::LogProbHeader& h) { h.mutable_request()->set_validate_only(true); }),
            "log_prob.request.validate_only");
}

}  // namespace
}  // namespace stemma
