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
