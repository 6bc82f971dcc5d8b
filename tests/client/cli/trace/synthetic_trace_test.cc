#include "client/cli/trace/synthetic_trace.h"

#include <algorithm>
#include <random>
#include <utility>

#include "client/cli/trace/trace_check.h"
#include "client/cli/trace/trace_stat.h"
#include "common/base/arrays.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stemma::cli {
namespace {

using ::testing::HasSubstr;

LengthDistribution Lengths(const std::string& text) {
  const auto lengths = LengthDistribution::Parse(text);
  EXPECT_TRUE(lengths.ok()) << lengths.status();
  return *lengths;
}

SyntheticTraceOptions Options() {
  SyntheticTraceOptions options;
  options.seed = 11;
  options.groups = 3;
  options.rollouts = Lengths("fixed:4");
  options.prompt_tokens = Lengths("uniform:5:9");
  options.response_tokens = Lengths("lognormal:8:0.5:20");
  options.mask_probability = 0.25;
  options.vocab_size = 50;
  options.kl_loss_coef = 0.01;
  return options;
}

std::vector<v1::PromptGroup> Groups(const SyntheticTraceOptions& options, int64_t step) {
  auto groups = SyntheticGroups(options, *SyntheticHeader(options), step);
  EXPECT_TRUE(groups.ok()) << groups.status();
  return *std::move(groups);
}

std::string Bytes(const SyntheticTraceOptions& options, int64_t step) {
  std::string bytes;
  for (const auto& group : Groups(options, step)) bytes += group.SerializeAsString();
  return bytes;
}

TEST(SyntheticTraceTest, TheSeedDecidesEverything) {
  SyntheticTraceOptions other = Options();
  other.seed = 12;
  EXPECT_EQ(Bytes(Options(), 5), Bytes(Options(), 5));
  EXPECT_NE(Bytes(Options(), 5), Bytes(Options(), 6));
  EXPECT_NE(Bytes(Options(), 5), Bytes(other, 5));
}

TEST(SyntheticTraceTest, ARequestThatNoLineHoldsIsRefusedBeforeItTakesMemory) {
  SyntheticTraceOptions options = Options();
  options.groups = 1 << 30;
  options.prompt_tokens = Lengths("fixed:2147483647");
  const absl::Status prompt = SyntheticGroups(options, *SyntheticHeader(options), 0).status();
  EXPECT_EQ(prompt.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(prompt.message(), HasSubstr("more than 67108864 tokens"));
  options.prompt_tokens = Lengths("fixed:1");
  options.response_tokens = Lengths("fixed:2147483647");
  EXPECT_EQ(SyntheticGroups(options, *SyntheticHeader(options), 0).status(), prompt);
}

TEST(SyntheticTraceTest, SoManyTokensAreMasked) {
  SyntheticTraceOptions options = Options();
  options.groups = 200;
  int64_t masked = 0, tokens = 0;
  for (const v1::PromptGroup& group : Groups(options, 0)) {
    for (const v1::Rollout& rollout : group.rollouts()) {
      const MaskView mask(rollout.response_mask(), TokenArray(rollout.response_tokens()).size());
      tokens += mask.size();
      for (int64_t t = 0; t < mask.size(); ++t) masked += mask[t] ? 0 : 1;
    }
  }
  EXPECT_GT(tokens, 4000);
  // Five deviations of so many draws are 0.034.
  EXPECT_NEAR(static_cast<double>(masked) / static_cast<double>(tokens), options.mask_probability, 0.034);
}

TEST(SyntheticTraceTest, EveryLossModeMakesARequestWithoutProblems) {
  for (const char* mode : {"vanilla", "gspo", "cispo", "importance_sampling", "cross_entropy", "gpg"}) {
    SyntheticTraceOptions options = Options();
    options.loss_mode = mode;
    auto header = SyntheticHeader(options);
    ASSERT_TRUE(header.ok()) << header.status();
    header->mutable_request()->set_request_id("r");
    const TraceRequest request = {.header = *header, .groups = Groups(options, 0)};
    const TraceProblems problems = CheckRequest(request, DefaultTraceRules());
    EXPECT_EQ(problems.count, 0u) << mode << ": " << (problems.texts.empty() ? "" : problems.texts[0]);
  }
}

TEST(SyntheticTraceTest, AnUnknownModeIsRefused) {
  SyntheticTraceOptions options = Options();
  options.loss_mode = "ppo2";
  EXPECT_FALSE(SyntheticHeader(options).ok());
}

TEST(SyntheticTraceTest, TokensStayBelowTheVocabularyAndLengthsInTheirRange) {
  const SyntheticTraceOptions options = Options();
  for (const auto& group : Groups(options, 0)) {
    const TokenArray prompt(group.prompt_tokens());
    EXPECT_GE(prompt.size(), 5);
    EXPECT_LE(prompt.size(), 9);
    for (int64_t i = 0; i < prompt.size(); ++i) EXPECT_LT(prompt[i], options.vocab_size);
    for (const auto& rollout : group.rollouts()) {
      EXPECT_LE(TokenArray(rollout.response_tokens()).size(), 20);
      EXPECT_GE(TokenArray(rollout.response_tokens()).size(), 1);
    }
  }
}

TEST(LengthDistributionTest, ALognormalHasItsMean) {
  const LengthDistribution lengths = Lengths("lognormal:200:0.5:100000");
  RandomValues random(3, "lengths");
  double sum = 0;
  for (int i = 0; i < 20000; ++i) sum += static_cast<double>(lengths.Sample(random));
  EXPECT_NEAR(sum / 20000, 200, 5);  // deviation of the mean is 107 / sqrt(20000) = 0.8
}

TEST(LengthDistributionTest, TheWidestLognormalStaysInItsRange) {
  for (const char* text : {"lognormal:1e308:10:1024", "lognormal:1e-300:10:1024"}) {
    const LengthDistribution lengths = Lengths(text);
    RandomValues random(3, "lengths");
    for (int i = 0; i < 1000; ++i) {
      const int64_t length = lengths.Sample(random);
      EXPECT_TRUE(length >= 1 && length <= 1024) << text << ": " << length;
    }
  }
}

TEST(LengthDistributionTest, ABrokenTextIsNamed) {
  for (const char* text :
       {"", "fixed", "fixed:0", "uniform:5:4", "lognormal:1:2", "zipf:3", "fixed:1:2", "uniform:1:x"}) {
    EXPECT_FALSE(LengthDistribution::Parse(text).ok()) << text;
  }
}

TEST(LengthDistributionTest, ARefusalSaysWhichLengthsThereAre) {
  const auto refusal = [](const char* text) { return std::string(LengthDistribution::Parse(text).status().message()); };
  EXPECT_THAT(refusal("0"), HasSubstr("each length a whole number from 1 up"));
  EXPECT_THAT(refusal("fixed:0"), HasSubstr("\"0\" is not a whole number from 1 to 2147483647"));
  EXPECT_THAT(refusal("uniform:1:x"), HasSubstr("\"x\" is not a whole number from 1 to"));
  EXPECT_THAT(refusal("uniform:5:2"), HasSubstr("LOW is 5 and above HIGH, 2"));
  EXPECT_THAT(refusal("lognormal:8:0:20"), HasSubstr("\"0\" is not a finite number above 0"));
  EXPECT_THAT(refusal("lognormal:200:1e308:1024"), HasSubstr("SIGMA is 1e308, at most 10 is taken"));
  EXPECT_THAT(refusal("lognormal:200:10.01:1024"), HasSubstr("SIGMA is 10.01, at most 10 is taken"));
  EXPECT_TRUE(LengthDistribution::Parse("uniform:5:5").ok());
}

TEST(TraceStatTest, TheBoundIsTheDesignsFormulaForEqualLengths) {
  SyntheticTraceOptions options = Options();
  options.mask_probability = 0;
  options.prompt_tokens = Lengths("fixed:65");  // 64 prefix rows
  options.response_tokens = Lengths("fixed:16");
  TraceStat stat;
  ASSERT_TRUE(stat.Add(Groups(options, 0)).ok());
  const Record record = stat.ToRecord();
  EXPECT_EQ(record["tokens_dense"].get<int64_t>(), 3 * 4 * (64 + 16));
  EXPECT_EQ(record["tokens_reuse"].get<int64_t>(), 3 * (64 + 4 * 16));
  EXPECT_DOUBLE_EQ(record["token_saving_bound"].get<double>(), 2.5);
  EXPECT_DOUBLE_EQ(record["prefix_ratio"].get<double>(), 0.8);
}

// What is not run costs no token and does not bring the prefix; it is counted as a rollout.
TEST(TraceStatTest, EmptyRolloutsAreNotRun) {
  v1::PromptGroup group;
  group.set_prompt_tokens(PackArray<int32_t>(std::vector<int32_t>(11, 1)));
  for (const int64_t tokens : {0, 5, 0, 7}) {
    group.add_rollouts()->set_response_tokens(PackArray<int32_t>(std::vector<int32_t>(static_cast<size_t>(tokens), 2)));
  }
  v1::PromptGroup empty = group;
  for (v1::Rollout& rollout : *empty.mutable_rollouts()) rollout.clear_response_tokens();
  TraceStat stat;
  ASSERT_TRUE(stat.Add({group, empty}).ok());
  const Record record = stat.ToRecord();
  EXPECT_EQ(record["rollouts"].get<int64_t>(), 8);
  EXPECT_EQ(record["tokens_dense"].get<int64_t>(), 2 * 10 + 5 + 7);
  EXPECT_EQ(record["tokens_reuse"].get<int64_t>(), 10 + 5 + 7);
  EXPECT_DOUBLE_EQ(record["prefix_ratio"].get<double>(), 20.0 / 32);
}

TEST(TraceStatTest, WhatNoCountIsTrueOfIsRefused) {
  v1::PromptGroup group;
  group.set_uid("g7");
  group.set_prompt_tokens(PackArray<int32_t>(std::vector<int32_t>{1, 2}));
  v1::Rollout& rollout = *group.add_rollouts();
  rollout.set_rollout_id("g7/0");
  rollout.set_response_tokens(PackArray<int32_t>(std::vector<int32_t>{3, 4}));
  const auto refusal = [&group] { return std::string(TraceStat().Add({group}).message()); };
  EXPECT_EQ(refusal(), "");
  rollout.set_response_mask("\xff\xff\xff");
  EXPECT_EQ(refusal(), "group g7, rollout g7/0: response_mask has 3 bytes, must have 1 for 2 bits");
  rollout.set_response_mask("\xff");
  EXPECT_THAT(refusal(), HasSubstr("response_mask has bits set beyond the 2 of the response"));
  rollout.set_response_mask("\x03");
  EXPECT_EQ(refusal(), "");
  group.set_prompt_tokens("");
  EXPECT_EQ(refusal(), "group g7 has an empty prompt");
}

// By the definition of a percentile, for drawn lengths.
TEST(TraceStatTest, SoManyResponsesAreNoLongerThanAPercentile) {
  std::mt19937 random(7);
  for (int draw = 0; draw < 200; ++draw) {
    v1::PromptGroup group;
    group.set_prompt_tokens(PackArray<int32_t>({1, 2, 3}));
    std::vector<int64_t> lengths(1 + random() % 12);
    for (int64_t& length : lengths) {
      length = static_cast<int64_t>(1 + random() % 9);
      group.add_rollouts()->set_response_tokens(
          PackArray<int32_t>(std::vector<int32_t>(static_cast<size_t>(length), 2)));
    }
    TraceStat stat;
    ASSERT_TRUE(stat.Add({group}).ok());
    const Record told = stat.ToRecord()["response_tokens"];
    for (const auto& [key, percent] : {std::pair("p50", 50), std::pair("p90", 90)}) {
      const auto value = told[key].get<int64_t>();
      const auto share = [&](int64_t most) {
        return 100 * std::count_if(lengths.begin(), lengths.end(), [&](int64_t length) { return length <= most; });
      };
      EXPECT_GE(share(value), percent * static_cast<int64_t>(lengths.size())) << key << " of draw " << draw;
      EXPECT_LT(share(value - 1), percent * static_cast<int64_t>(lengths.size())) << key << " of draw " << draw;
    }
  }
}

TEST(TraceStatTest, DistributionsHoldTheirQuantiles) {
  v1::PromptGroup group;
  group.set_prompt_tokens(PackArray<int32_t>({1, 2, 3}));
  for (int tokens = 1; tokens <= 11; ++tokens) {
    group.add_rollouts()->set_response_tokens(PackArray<int32_t>(std::vector<int32_t>(static_cast<size_t>(tokens), 2)));
  }
  TraceStat stat;
  ASSERT_TRUE(stat.Add({group}).ok());
  const Record lengths = stat.ToRecord()["response_tokens"];
  EXPECT_EQ(lengths["min"].get<int64_t>(), 1);
  EXPECT_EQ(lengths["p50"].get<int64_t>(), 6);
  EXPECT_EQ(lengths["p90"].get<int64_t>(), 10);
  EXPECT_EQ(lengths["max"].get<int64_t>(), 11);
  EXPECT_DOUBLE_EQ(lengths["mean"].get<double>(), 6);
}

}  // namespace
}  // namespace stemma::cli
