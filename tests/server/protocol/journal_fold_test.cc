// What folding a row costs, and what it finds in a journal that holds many requests.
#include "server/protocol/journal_fold.h"

#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace stemma::server {
namespace {

using internal::v1::JournalRow;
using internal::v1::JournalState;

constexpr uint64_t kRequestsKept = 4;

// A copy would be as much memory again, at every start.
TEST(JournalFoldTest, ASnapshotThatIsHandedOverIsNotCopied) {
  JournalRow row;
  row.mutable_snapshot()->set_lineage("L-1");
  row.mutable_snapshot()->add_requests()->set_request_id("a");
  const internal::v1::KnownRequest* request = &row.snapshot().requests(0);
  JournalState state;
  state.set_lineage("L-0");
  state.add_requests()->set_request_id("b");
  ASSERT_TRUE(FoldRow(std::as_const(row), kRequestsKept, state).ok());
  EXPECT_NE(&state.requests(0), request) << "control";
  KnownRequests requests(&state);
  ASSERT_TRUE(FoldRow(std::move(row), kRequestsKept, state, requests).ok());
  ASSERT_EQ(state.requests_size(), 1);
  EXPECT_EQ(&state.requests(0), request);
  EXPECT_EQ(state.lineage(), "L-1");
}

// What a model directory holds is not what a lineage began with that began with a checkpoint of step 0.
TEST(JournalFoldTest, WhatStepZeroIsIsNoted) {
  JournalState state;
  JournalRow begun;
  for (const auto& [name, step] : {std::pair("start", 0), std::pair("later", 3)}) {
    internal::v1::KnownCheckpoint& known = *state.add_checkpoints();
    known.set_name(name);
    known.set_step(static_cast<uint64_t>(step));
  }
  const auto begin = [&](const std::string& lineage, const std::string& checkpoint, uint64_t step) {
    internal::v1::LineageBegun& row = *begun.mutable_lineage_begun();
    row.set_name(lineage);
    if (state.lineage().empty()) {
      row.set_checkpoint(checkpoint);
      row.set_step(step);
    } else {
      row.mutable_lost()->set_lineage(state.lineage());
      row.mutable_lost()->set_checkpoint(checkpoint);
      row.mutable_lost()->set_checkpoint_step(step);
    }
    EXPECT_TRUE(FoldRow(begun, kRequestsKept, state).ok()) << lineage;
    return state.begins_with_checkpoint();
  };
  EXPECT_TRUE(begin("L-1", "start", 0));
  EXPECT_FALSE(begin("L-2", "later", 3));
  EXPECT_TRUE(begin("L-3", "start", 0));
  EXPECT_FALSE(begin("L-4", "", 0)) << "the directory's";
}

// A damaged row may name any step.
TEST(JournalFoldTest, AResultOfAStepFarBeyondTheOthersFollowsThem) {
  JournalState state;
  JournalRow accepted, skipped;
  accepted.mutable_accepted()->set_request_id("a");
  skipped.mutable_skipped()->set_request_id("a");
  skipped.mutable_skipped()->set_k(1u << 31);
  skipped.mutable_skipped()->add_results()->set_outcome(v1::StepResult::SKIPPED_EMPTY);
  for (const JournalRow& row : {accepted, skipped, skipped}) ASSERT_TRUE(FoldRow(row, kRequestsKept, state).ok());
  EXPECT_EQ(state.requests(0).result().steps_size(), 2);
}

}  // namespace
}  // namespace stemma::server
