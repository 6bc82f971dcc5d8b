// What rows of the journal count, each kind by itself and many in a drawn order.
#include "server/protocol/totals.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

using internal::v1::JournalRow;
using server::Totals;

v1::StepResult Step(v1::StepResult::Outcome outcome, uint64_t step, double value) {
  v1::StepResult result;
  result.set_outcome(outcome);
  result.set_step(step);
  for (const char* name : {"time/prefix_forward_s", "time/suffix_s", "time/prefix_backward_s", "time/apply_s",
                           "prefix/tokens_logical", "prefix/tokens_computed", "perf/actor/flops"}) {
    (*result.mutable_metrics())[name] = value;
    value *= 2;
  }
  return result;
}

TEST(TotalsTest, AStepThatWasMadeBeforeIsNotCountedAgain) {
  JournalRow row;
  row.mutable_applied()->set_weights_digest("other bits");
  Totals totals;
  totals.Count(row, {});
  EXPECT_EQ(totals.steps, Totals().steps);
  EXPECT_TRUE(totals.last_step.metrics().empty());
}

TEST(TotalsTest, ALineageThatOnlyGetsANameLosesNothing) {
  JournalRow row;
  row.mutable_lineage_begun()->set_name("a-2");
  Totals totals;
  totals.Count(row, {});
  EXPECT_EQ(totals.lineages_lost, 0u);
  row.mutable_lineage_begun()->mutable_lost()->set_lineage("a-1");
  totals.Count(row, {});
  EXPECT_EQ(totals.lineages_lost, 1u);
}

// Without kept requests a step that was skipped is skipped again after a loss, with the same result.
TEST(TotalsTest, AStepThatIsSkippedAgainIsNotCountedAgain) {
  internal::v1::JournalState before;
  internal::v1::KnownRequest& request = *before.add_requests();
  request.set_request_id("r");
  for (int k = 0; k < 2; ++k) *request.mutable_result()->add_steps() = Step(v1::StepResult::SKIPPED_EMPTY, 0, 0);
  JournalRow row;
  row.mutable_skipped()->set_request_id("r");
  for (int k = 0; k < 3; ++k) *row.mutable_skipped()->add_results() = Step(v1::StepResult::SKIPPED_EMPTY, 0, 0);
  Totals totals;
  totals.Count(row, before);
  EXPECT_EQ(totals.steps[v1::StepResult::SKIPPED_EMPTY], 1u) << "the third of them";
  row.mutable_applied()->set_request_id("r");
  *row.mutable_applied()->mutable_result() = Step(v1::StepResult::SKIPPED_NONFINITE, 0, 0);
  for (const uint32_t k : {0u, 1u, 2u}) {
    row.mutable_applied()->set_k(k);
    totals.Count(row, before);
  }
  EXPECT_EQ(totals.steps[v1::StepResult::SKIPPED_NONFINITE], 1u) << "the third of them";
  *row.mutable_applied()->mutable_result() = Step(v1::StepResult::APPLIED, 1, 1);
  row.mutable_applied()->set_k(0);
  totals.Count(row, before);
  EXPECT_EQ(totals.steps[v1::StepResult::APPLIED], 1u) << "no row says twice that a step was applied";
  EXPECT_EQ(totals.last_step.step(), 1u);
}

TEST(TotalsTest, WhatIsOpenIsRolledBackWithItsLineage) {
  internal::v1::JournalState before;
  for (const v1::RequestState state : {v1::DONE, v1::ACCEPTED, v1::APPLIED, v1::CANCELLED}) {
    before.add_requests()->mutable_status()->set_state(state);
  }
  JournalRow row;
  row.mutable_lineage_begun()->mutable_lost()->set_lineage("a-1");
  Totals totals;
  totals.Count(row, before);
  EXPECT_EQ(totals.updates_ended[v1::ROLLED_BACK], 2u);
}

TEST(TotalsTest, EachMetricHasASumOfItsOwn) {
  JournalRow row;
  *row.mutable_applied()->mutable_result() = Step(v1::StepResult::APPLIED, 1, 1);
  Totals totals;
  totals.Count(row, {});
  EXPECT_EQ(totals.prefix_forward_s, 1);
  EXPECT_EQ(totals.suffix_s, 2);
  EXPECT_EQ(totals.prefix_backward_s, 4);
  EXPECT_EQ(totals.apply_s, 8);
  EXPECT_EQ(totals.tokens_logical, 16);
  EXPECT_EQ(totals.tokens_computed, 32);
  EXPECT_EQ(totals.flops, 64);
}

// It has metrics where it ran for its log-probs.
TEST(TotalsTest, WorkIsThatOfAppliedSteps) {
  JournalRow row;
  *row.mutable_skipped()->add_results() = Step(v1::StepResult::SKIPPED_EMPTY, 1, 1);
  Totals totals;
  totals.Count(row, {});
  EXPECT_EQ(totals.steps[v1::StepResult::SKIPPED_EMPTY], 1u);
  EXPECT_EQ(totals.tokens_computed, 0);
  EXPECT_EQ(totals.suffix_s, 0);
  EXPECT_TRUE(totals.last_step.metrics().empty());
}

// A later version's enum, in a row that an older server reads.
TEST(TotalsTest, ValuesThatAreNotKnownAreCountedAsNone) {
  JournalRow row;
  row.mutable_finished()->set_state(static_cast<v1::RequestState>(1000));
  Totals totals;
  totals.Count(row, {});
  EXPECT_EQ(totals.updates_ended[v1::REQUEST_STATE_UNSPECIFIED], 1u);
  *row.mutable_applied()->mutable_result() = Step(static_cast<v1::StepResult::Outcome>(-1), 1, 1);
  totals.Count(row, {});
  EXPECT_EQ(totals.steps[v1::StepResult::OUTCOME_UNSPECIFIED], 1u);
}

TEST(TotalsTest, DrawnRowsAreCountedByTheirKind) {
  for (uint64_t seed = FirstSeed(); seed < FirstSeed() + 50; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    Totals totals;
    std::map<std::string, uint64_t> drawn;
    double seconds = 0;
    uint64_t last = 0;
    for (uint64_t i = 1; i <= 60; ++i) {
      JournalRow row;
      const auto outcome =
          draw.Of<v1::StepResult::Outcome>({v1::StepResult::APPLIED, v1::StepResult::SKIPPED_NONFINITE});
      const auto kind = draw.Of<std::string>(
          {"accepted", "finished", "applied", "skipped", "saved", "started", "committed", "undone"});
      ++drawn[kind == "applied" ? v1::StepResult::Outcome_Name(outcome) : kind];
      if (kind == "accepted") row.mutable_accepted()->set_request_id("r");
      if (kind == "finished") row.mutable_finished()->set_state(v1::FAILED);
      if (kind == "saved") row.mutable_checkpoint_saved()->mutable_checkpoint()->set_name("c");
      if (kind == "started") row.mutable_started()->set_epoch(i);
      if (kind == "committed") row.mutable_committed()->set_step(i);
      if (kind == "undone") row.mutable_undone()->set_k(1);
      if (kind == "skipped") {
        for (int k = 0; k < 3; ++k) *row.mutable_skipped()->add_results() = Step(v1::StepResult::SKIPPED_EMPTY, i, 0);
      }
      if (kind == "applied") {
        *row.mutable_applied()->mutable_result() = Step(outcome, i, static_cast<double>(i));
        if (outcome == v1::StepResult::APPLIED) {
          seconds += static_cast<double>(i);
          last = i;
        }
      }
      totals.Count(row, {});
    }
    EXPECT_EQ(totals.updates_accepted, drawn["accepted"]);
    EXPECT_EQ(totals.updates_ended[v1::FAILED], drawn["finished"]);
    EXPECT_EQ(totals.steps[v1::StepResult::APPLIED], drawn["APPLIED"]);
    EXPECT_EQ(totals.steps[v1::StepResult::SKIPPED_NONFINITE], drawn["SKIPPED_NONFINITE"]);
    EXPECT_EQ(totals.steps[v1::StepResult::SKIPPED_EMPTY], 3 * drawn["skipped"]);
    EXPECT_EQ(totals.checkpoints_saved, drawn["saved"]);
    EXPECT_EQ(totals.prefix_forward_s, seconds);
    EXPECT_EQ(totals.last_step.step(), last);
  }
}

}  // namespace
}  // namespace stemma::testing
