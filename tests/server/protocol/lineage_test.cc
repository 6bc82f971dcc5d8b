#include "server/protocol/lineage.h"

#include "common/base/error.h"
#include "gtest/gtest.h"
#include "server/protocol/journal_fold.h"

namespace stemma::server {
namespace {

v1::RequestHeader Expecting(const std::string& lineage, uint64_t step) {
  v1::RequestHeader header;
  header.set_expected_lineage(lineage);
  header.set_expected_step(step);
  return header;
}

TEST(LineageTest, AStepThatIsCountedMovesStepAndVersionTogether) {
  Lineage lineage("a");
  EXPECT_EQ(lineage.name(), "a-1");
  EXPECT_EQ(lineage.step(), 0u);
  EXPECT_EQ(lineage.weight_version(), 1u) << "what the model directory holds";
  lineage.CountStep();
  EXPECT_EQ(lineage.step(), 1u);
  EXPECT_EQ(lineage.weight_version(), 2u);
}

TEST(LineageTest, AnEndBeginsTheNextOneAtStepZeroUnderAnotherName) {
  Lineage lineage("a");
  lineage.CountStep();
  const LostLineage lost = lineage.End({});
  EXPECT_EQ(lost.name, "a-1");
  EXPECT_EQ(lost.step, 1u);
  EXPECT_EQ(lineage.name(), "a-2");
  EXPECT_EQ(lineage.step(), 0u);
  EXPECT_EQ(lineage.weight_version(), 3u) << "it never falls";
  const ErrorDetails details = GetErrorDetails(lineage.LostError(lost));
  EXPECT_EQ(details.metadata.at("lost_lineage"), "a-1");
  EXPECT_EQ(details.metadata.at("lost_step"), "1");
  EXPECT_EQ(details.metadata.at("lineage"), "a-2");
}

TEST(LineageTest, ARolledBackRequestIsToldWhatTheModelWentOnFrom) {
  Lineage lineage("a");
  for (int i = 0; i < 5; ++i) lineage.CountStep();
  lineage.End({"c", 3});
  UpdateRecord record;
  record.id = "r";
  record.lineage = "a-1";
  record.lost_step = 5;
  const std::string text(lineage.RolledBackError(record).message());
  EXPECT_NE(text.find("went on from checkpoint c at step 3"), std::string::npos) << text;
  EXPECT_EQ(text.find("no checkpoint"), std::string::npos) << text;
  EXPECT_EQ(text.find(", was "), std::string::npos) << "it had not ended: " << text;
  record.status.set_state(v1::DONE);
  record.ended = true;
  const std::string done(lineage.RolledBackError(record).message());
  EXPECT_NE(done.find(" steps applied, was DONE, is rolled back"), std::string::npos) << done;
  record.lineage = "before-1";  // no longer remembered
  const std::string neutral(lineage.RolledBackError(record).message());
  EXPECT_NE(neutral.find("lineage before-1 at step 5 are gone"), std::string::npos) << neutral;
  EXPECT_EQ(neutral.find("checkpoint"), std::string::npos) << neutral;
}

TEST(LineageTest, ALineageCanBeginWithACheckpoint) {
  Lineage lineage("a");
  for (int i = 0; i < 5; ++i) lineage.CountStep();
  const LostLineage lost = lineage.End({"c", 3});
  EXPECT_EQ(lost.step, 5u);
  EXPECT_EQ(lineage.step(), 3u);
  EXPECT_FALSE(lineage.behind()) << "its generation is to load it";
  const std::string text(lineage.LostError(lost).message());
  EXPECT_NE(text.find("from checkpoint c at step 3"), std::string::npos) << text;
  EXPECT_NE(text.find("lineage a-1 at step 5"), std::string::npos) << text;
  lineage.CountStep();
  lineage.BeginGeneration(3);
  EXPECT_TRUE(lineage.behind());
  lineage.CountStepAgain();
  EXPECT_FALSE(lineage.behind());
}

TEST(LineageTest, RuinedWeightsAreOfNoUseUntilTheyEnd) {
  Lineage lineage("a");
  EXPECT_EQ(lineage.unusable(), "");
  lineage.Ruin("r", "layers.0.qkv");
  EXPECT_NE(lineage.unusable().find("step 1 (request r)"), std::string::npos) << lineage.unusable();
  EXPECT_NE(lineage.unusable().find("layers.0.qkv"), std::string::npos) << lineage.unusable();
  EXPECT_TRUE(HasReason(lineage.UnusableError(), Reason::kNonfiniteUpdate));
  EXPECT_EQ(lineage.weight_version(), 2u) << "others than before are in the worker";
  lineage.End({});
  EXPECT_EQ(lineage.unusable(), "");
}

TEST(LineageTest, WhatARequestExpectsIsHeldAgainstNameThenStep) {
  Lineage lineage("a");
  lineage.CountStep();
  EXPECT_TRUE(lineage.CheckExpected({}, 7).ok()) << "it expects nothing";
  EXPECT_TRUE(lineage.CheckExpected(Expecting("a-1", 7), 7).ok());
  EXPECT_TRUE(HasReason(lineage.CheckExpected(Expecting("a-1", 6), 7), Reason::kStepMismatch));
  EXPECT_EQ(lineage.CheckExpected(Expecting("a-1", 6), 7).message(),
            "expected_step is 6, the request would start at step 7 of lineage a-1; look at what trained it since, or "
            "leave expected_step out to go on from there");
  EXPECT_EQ(lineage.CheckExpected(Expecting("a-1", 8), 7).message(),
            "expected_step is 8, the request would start at step 7 of lineage a-1; a step that was skipped, or given "
            "up for a checkpoint, does not count: look at the outcomes of the requests before it, or leave "
            "expected_step out to go on from there");
  EXPECT_TRUE(HasReason(lineage.CheckExpected(Expecting("b-1", 6), 7), Reason::kLineageMismatch));
  EXPECT_FALSE(GetErrorDetails(lineage.CheckName("b-1")).metadata.contains("lost_step")) << "it was never ours";
  lineage.End({});
  EXPECT_EQ(GetErrorDetails(lineage.CheckName("a-1")).metadata.at("lost_step"), "1");
}

TEST(LineageTest, AnEarlierNameIsExpectedAsTheNewestIsUntilAllAreLost) {
  Lineage lineage("a");
  lineage.CountStep();
  lineage.Rename();
  lineage.Rename();
  EXPECT_EQ(lineage.name(), "a-3");
  for (const char* name : {"a-1", "a-2", "a-3"}) EXPECT_TRUE(lineage.CheckName(name).ok()) << name;
  EXPECT_TRUE(lineage.CheckExpected(Expecting("a-1", 1), 1).ok());
  EXPECT_TRUE(HasReason(lineage.CheckName("a-4"), Reason::kLineageMismatch)) << "no name of the future";
  internal::v1::KnownCheckpoint checkpoint;
  checkpoint.set_name("c");
  EXPECT_EQ(lineage.End({"c", 0}).former, (std::vector<std::string>{"a-1", "a-2"}));
  EXPECT_TRUE(lineage.WentFrom("a-2", checkpoint)) << "a repeated load";
  for (const char* name : {"a-1", "a-2", "a-3"}) {
    const ErrorDetails details = GetErrorDetails(lineage.CheckName(name));
    EXPECT_EQ(details.metadata.at("lost_lineage"), "a-3") << name;
    EXPECT_EQ(details.metadata.at("lost_step"), "1") << name;
  }
}

TEST(LineageTest, AThousandNamesOfALineageAreRemembered) {
  Lineage lineage("a");
  for (int i = 0; i < kFormerLineagesMax + 1; ++i) lineage.Rename();
  EXPECT_FALSE(lineage.CheckName("a-1").ok());
  EXPECT_TRUE(lineage.CheckName("a-2").ok());
}

// What the journal is told while it runs is what an earlier server's journal gives.
TEST(LineageTest, NamesOutliveTheServer) {
  internal::v1::JournalState state;
  const auto fold = [&state](auto set) {
    internal::v1::JournalRow row;
    set(*row.mutable_lineage_begun());
    ASSERT_TRUE(FoldRow(row, /*requests_kept=*/1, state).ok());
  };
  for (const char* name : {"a-1", "a-2", "a-3"}) fold([&](auto& begun) { begun.set_name(name); });
  const Lineage lineage("b", state);
  EXPECT_EQ(lineage.name(), "a-3");
  EXPECT_TRUE(lineage.CheckName("a-1").ok());
  fold([](auto& begun) {
    begun.set_name("b-1");
    begun.mutable_lost()->set_lineage("a-3");
    begun.mutable_lost()->set_step(4);
  });
  EXPECT_EQ(state.former_lineages_size(), 0);
  const Lineage next("c", state);
  EXPECT_EQ(GetErrorDetails(next.CheckName("a-1")).metadata.at("lost_step"), "4");
  EXPECT_TRUE(next.CheckName("b-1").ok());
}

TEST(LineageTest, SixtyFourLostLineagesAreRemembered) {
  Lineage lineage("a");
  for (int i = 0; i < 65; ++i) lineage.End({});
  EXPECT_FALSE(GetErrorDetails(lineage.CheckName("a-1")).metadata.contains("lost_step"));
  EXPECT_TRUE(GetErrorDetails(lineage.CheckName("a-2")).metadata.contains("lost_step"));
}

TEST(LineageTest, WhatCouldBeNoLineageIsRefusedAndNotSaidAgain) {
  const Lineage lineage("a");
  for (const std::string& name : {std::string(), std::string("b\nc"), std::string(1400, 'x')}) {
    const absl::Status refused = lineage.CheckName(name);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_EQ(ErrorReason(refused), "INVALID_REQUEST");
    const ErrorDetails details = GetErrorDetails(refused);
    ASSERT_EQ(details.violations.size(), 1u);
    EXPECT_EQ(details.violations[0].field, "expected_lineage");
    EXPECT_EQ(refused.message().find('\n'), std::string::npos) << refused;
    EXPECT_LT(refused.message().size(), 300u) << refused;
  }
}

TEST(LineageTest, LossesAreInARowUntilTheFurthestStepThatCostSomeIsMade) {
  Lineage lineage("a");
  for (int i = 0; i < 3; ++i) lineage.CountStep();
  lineage.BeginGeneration(0);
  lineage.CountStepAgain();
  EXPECT_EQ(lineage.CountLossAgain(), 1u) << "in step 2";
  lineage.BeginGeneration(0);
  EXPECT_EQ(lineage.CountLossAgain(), 2u) << "in step 1: no further";
  lineage.BeginGeneration(0);
  lineage.CountStepAgain();
  EXPECT_EQ(lineage.CountLossAgain(), 3u) << "step 1 alone is no way out";
  lineage.BeginGeneration(0);
  lineage.CountStepAgain();
  lineage.CountStepAgain();
  EXPECT_EQ(lineage.CountLossAgain(), 1u) << "step 2 was made: step 3 is another";
  lineage.BeginGeneration(0);
  EXPECT_EQ(lineage.CountLossAgain(), 2u);
  lineage.End({});
  EXPECT_EQ(lineage.CountLossAgain(), 1u) << "of another history";
}

TEST(LineageTest, LossesBeginAnewOnceTheStepThatCostThemIsMadeOrPassedOver) {
  Lineage lineage("a");
  for (int i = 0; i < 6; ++i) lineage.CountStep();
  lineage.BeginGeneration(0);
  EXPECT_EQ(lineage.CountLossAgain(), 1u) << "in step 1";
  lineage.BeginGeneration(0);
  lineage.CountStepAgain();
  lineage.BeginGeneration(0);
  EXPECT_EQ(lineage.CountLossAgain(), 1u) << "step 1 was made: these are others";
  lineage.BeginGeneration(5);
  EXPECT_EQ(lineage.CountLossAgain(), 1u) << "in step 6, from a checkpoint behind the steps before";
  EXPECT_EQ(lineage.CountLossAgain(), 2u);
}

TEST(LineageTest, TheWeightsVersionNeverFallsWithACheckpoint) {
  internal::v1::JournalState state;
  state.set_lineage("a-1");
  state.set_weight_version(5);
  internal::v1::KnownCheckpoint checkpoint;
  checkpoint.set_step(2);
  checkpoint.set_weight_version(3);
  Lineage older("b", state);
  older.BeginWith(checkpoint);
  EXPECT_EQ(older.weight_version(), 6u);
  checkpoint.set_weight_version(8);
  Lineage newer("b", state);
  newer.BeginWith(checkpoint);
  EXPECT_EQ(newer.weight_version(), 9u);
}

// A decided step that no rank has applied comes after all that are computed again.
TEST(LineageTest, TheWeightsOfBeforeAreNoProgressWhereTheStepAfterThemCostsWorkers) {
  Lineage lineage("a");
  lineage.CountStep();
  for (uint32_t loss = 1; loss <= 3; ++loss) {
    EXPECT_EQ(lineage.CountLossAgain(), loss);
    lineage.BeginGeneration(0);
    lineage.CountStepAgain();
  }
  lineage.CountStep();
  EXPECT_EQ(lineage.CountLossAgain(), 1u);
}

}  // namespace
}  // namespace stemma::server
