// The journal's rows and their fold: what a restart finds is what the running server held; what no server wrote is
// refused.
#include "server/protocol/history.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "tests/server/protocol/history_rows.h"

namespace stemma::server {
namespace {

using google::protobuf::util::MessageDifferencer;
using internal::v1::JournalRow;
using internal::v1::JournalState;

std::vector<JournalAction> RowsOf(Outbox& out) {
  std::vector<JournalAction> rows;
  for (const Action& action : out.Take().actions) {
    if (const auto* row = std::get_if<JournalAction>(&action)) rows.push_back(*row);
  }
  return rows;
}

JournalState FoldOf(const std::vector<JournalAction>& rows) {
  JournalState state;
  for (const JournalAction& action : rows) {
    JournalRow row;
    EXPECT_TRUE(row.ParseFromString(action.body));
    const absl::Status folded = FoldRow(row, kRequestsKept, state);
    EXPECT_TRUE(folded.ok()) << folded;
  }
  return state;
}

TEST(HistoryTest, TheFoldOfTheRowsIsWhatTheServerHolds) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Outbox out;
    out.Begin(absl::UnixEpoch());
    History history({.replays = true, .requests_kept = kRequestsKept, .snapshot_after_bytes = 2000}, &out);
    Live(random, history, 60);
    const std::vector<JournalAction> rows = RowsOf(out);
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i].n, i + 1);
    EXPECT_TRUE(MessageDifferencer::Equals(FoldOf(rows), history.state()));
    EXPECT_LE(history.state().requests_size(), static_cast<int>(kRequestsKept));
  }
}

// What the journal holds after a snapshot is the rows from it on.
TEST(HistoryTest, ASnapshotStandsForAllRowsBeforeIt) {
  std::mt19937 random(1);
  Outbox out;
  out.Begin(absl::UnixEpoch());
  History history({.replays = true, .requests_kept = kRequestsKept, .snapshot_after_bytes = 2000}, &out);
  Live(random, history, 200);
  std::vector<JournalAction> held;
  size_t snapshots = 0, bytes = 0, most_bytes = 0, largest = 2000;
  for (JournalAction& row : RowsOf(out)) {
    if (row.replaces) {
      ++snapshots;
      held.clear();
      bytes = 0;
      EXPECT_TRUE(row.settles);
      largest = std::max(largest, row.body.size());
    }
    bytes += row.body.size();
    most_bytes = std::max(most_bytes, bytes);
    held.push_back(std::move(row));
  }
  EXPECT_GT(snapshots, 3u);
  EXPECT_TRUE(MessageDifferencer::Equals(FoldOf(held), history.state()));
  EXPECT_LT(most_bytes, 3 * largest) << "a snapshot, as many bytes of rows, and those of one request";
}

// A long run: four steps a request, a checkpoint every hundred steps, two of them kept, numbers as of a real step.
TEST(HistoryTest, AHundredThousandStepsStayBounded) {
  constexpr uint64_t kSteps = 100'000, kStepsOfRequest = 4, kCheckpointEvery = 100, kSnapshotAfter = 8u << 20;
  Outbox out;
  History history({.replays = true, .requests_kept = 1000, .snapshot_after_bytes = kSnapshotAfter}, &out);
  history.Start(1);
  history.BeginLineage(Begun("L", 1));
  size_t held_bytes = 0, most_bytes = 0, largest_snapshot = 0;
  int most_kept = 0, most_files = 0, files = 0;
  for (uint64_t step = 0; step < kSteps;) {
    out.Begin(absl::UnixEpoch());
    const std::string id = "run-0123456789abcdef/" + std::to_string(step);
    history.Accept(Accepted(id, /*kept=*/true));
    ++files;
    for (uint32_t k = 0; k < kStepsOfRequest; ++k) {
      ++step;
      history.Commit(Committed(id, k, step));
      internal::v1::StepApplied applied = Applied(id, k, step);
      for (int i = 0; i < 40; ++i)
        (*applied.mutable_result()->mutable_metrics())["metric/" + std::to_string(i)] = 0.5 * i;
      history.Apply(std::move(applied));
    }
    history.Finish(Finished(id, v1::DONE));
    if (step % kCheckpointEvery == 0) {
      history.SaveCheckpoint(Saved("L", step));
      if (step > 2 * kCheckpointEvery) history.DropCheckpoint("step-" + std::to_string(step - 2 * kCheckpointEvery));
    }
    for (const Action& action : out.Take().actions) {
      if (std::holds_alternative<RemoveSpoolAction>(action)) --files;
      const auto* row = std::get_if<JournalAction>(&action);
      if (row == nullptr) continue;
      if (row->replaces) held_bytes = 0;
      if (row->replaces) largest_snapshot = std::max(largest_snapshot, row->body.size());
      held_bytes += row->body.size();
      most_bytes = std::max(most_bytes, held_bytes);
    }
    most_kept = std::max(most_kept, history.state().kept_size());
    most_files = std::max(most_files, files);
  }
  EXPECT_EQ(history.state().step(), kSteps);
  EXPECT_LE(most_kept, static_cast<int>(2 * kCheckpointEvery / kStepsOfRequest)) << "back to the checkpoint before";
  EXPECT_EQ(most_files, most_kept) << "of the spool";
  EXPECT_GT(largest_snapshot, 0u);
  EXPECT_LT(most_bytes, largest_snapshot + std::max<size_t>(kSnapshotAfter, largest_snapshot) + (64u << 10));
  EXPECT_LT(largest_snapshot, 16u << 20) << "requests that are remembered, and ids of those that are not";
  RecordProperty("largest_snapshot", std::to_string(largest_snapshot));
}

// Rows of requests that never make a step, of pins and of findings are bounded too.
TEST(HistoryTest, WithoutAnyStepTheJournalStaysBounded) {
  constexpr size_t kSnapshotAfter = 64u << 10;
  Outbox out;
  out.Begin(absl::UnixEpoch());
  History history({.replays = true, .requests_kept = kRequestsKept, .snapshot_after_bytes = kSnapshotAfter}, &out);
  history.BeginLineage(Begun("L", 1));
  history.SaveCheckpoint(Saved("L", 0));
  for (const bool calls : {false, true}) {
    size_t held_bytes = 0, most_bytes = 0, rows = 0;
    for (int i = 0; i < 4000; ++i) {
      const std::string id = "run-0123456789abcdef/" + std::to_string(i);
      if (calls) {
        history.PinCheckpoint("step-0", i % 2 == 0);
        history.JudgeCheckpoint("step-0", i % 2 == 0 ? "it is damaged" : "");
      } else {
        history.Accept(Accepted(id, /*kept=*/true));
        history.Finish(Finished(id, v1::FAILED));
      }
      for (const JournalAction& row : RowsOf(out)) {
        if (row.replaces) held_bytes = 0;
        held_bytes += row.body.size();
        most_bytes = std::max(most_bytes, held_bytes);
        ++rows;
      }
    }
    EXPECT_GT(rows, 8000u) << "with snapshots among them";
    EXPECT_LT(most_bytes, 4 * kSnapshotAfter) << calls;
  }
}

TEST(HistoryTest, PinsAndFindingsAreEachCompacted) {
  constexpr size_t kSnapshotAfter = 2000;
  for (const bool pins : {false, true}) {
    Outbox out;
    out.Begin(absl::UnixEpoch());
    History history({.replays = true, .requests_kept = kRequestsKept, .snapshot_after_bytes = kSnapshotAfter}, &out);
    history.BeginLineage(Begun("L", 1));
    history.SaveCheckpoint(Saved("L", 0));
    for (int i = 0; i < 1000; ++i) {
      pins ? history.PinCheckpoint("step-0", i % 2 == 0) : history.JudgeCheckpoint("step-0", i % 2 == 0 ? "gone" : "");
    }
    size_t snapshots = 0;
    for (const JournalAction& row : RowsOf(out)) snapshots += row.replaces ? 1 : 0;
    EXPECT_GT(snapshots, 3u) << pins;
  }
}

// One that was copied back beside the journal's own takes nothing from them.
TEST(HistoryTest, AnOlderCheckpointThatIsFoundLeavesWhatIsKept) {
  Outbox out;
  out.Begin(absl::UnixEpoch());
  History history({.replays = true, .requests_kept = kRequestsKept}, &out);
  history.BeginLineage(Begun("L", 1));
  for (uint64_t step = 1; step <= 3; ++step) {
    const std::string id = std::to_string(step);
    history.Accept(Accepted(id, /*kept=*/true));
    history.Commit(Committed(id, 0, step));
    history.Apply(Applied(id, 0, step));
    history.Finish(Finished(id, v1::DONE));
    history.SaveCheckpoint(Saved("L", step));
  }
  ASSERT_EQ(history.state().kept_size(), 1) << "the step between the newest two";
  history.DropCheckpoint("step-1");
  history.SaveCheckpoint(Saved("L", 1));
  EXPECT_EQ(history.state().kept_size(), 1);
  history.SaveCheckpoint(Saved("L", 4));  // control: a newer one does
  EXPECT_EQ(history.state().kept_size(), 0);
}

// Both are found on the disk, whoever wrote them, when the server is started again.
TEST(HistoryTest, ACheckpointIsInTheDatabaseItselfWhenItIsKnown) {
  Outbox out;
  out.Begin(absl::UnixEpoch());
  History history({.replays = true, .requests_kept = kRequestsKept}, &out);
  history.BeginLineage(Begun("L", 1));
  history.SaveCheckpoint(Saved("L", 0));
  history.TakeCheckpoint(Saved("before", 7));
  const std::vector<JournalAction> rows = RowsOf(out);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_FALSE(rows[0].settles);
  EXPECT_TRUE(rows[1].settles) << "its own";
  EXPECT_TRUE(rows[2].settles) << "one that was found";
}

TEST(JournalFoldTest, RowsThatNoServerWroteAreRefused) {
  JournalRow begun, accepted, committed, applied, finished, undone, started;
  begun.mutable_lineage_begun()->set_name("L");
  *begun.mutable_lineage_begun() = begun.lineage_begun();
  *accepted.mutable_accepted() = Accepted("a", true);
  *committed.mutable_committed() = Committed("a", 0, 1);
  *applied.mutable_applied() = Applied("a", 0, 1);
  *finished.mutable_finished() = Finished("a", v1::DONE);
  undone.mutable_undone()->set_request_id("a");
  started.mutable_started()->set_epoch(0);
  JournalRow later = committed;
  later.mutable_committed()->set_step(2);
  JournalRow lost = begun;
  lost.mutable_lineage_begun()->mutable_lost()->set_lineage("other");
  const std::vector<std::vector<JournalRow>> wrong = {
      {started},
      {begun, JournalRow()},
      {begun, lost},
      {begun, committed},
      {begun, applied},
      {begun, finished},
      {begun, accepted, accepted},
      {begun, accepted, later},
      {begun, accepted, applied},
      {begun, accepted, committed, committed},
      {begun, accepted, committed, applied, undone},
      {begun, accepted, committed, applied, finished, finished},
      {begun, accepted, committed, applied, finished, committed},
  };
  for (size_t i = 0; i < wrong.size(); ++i) {
    JournalState state;
    absl::Status folded;
    for (size_t n = 0; n < wrong[i].size(); ++n) {
      ASSERT_TRUE(folded.ok()) << "case " << i << ", row " << n << ": " << folded;
      folded = FoldRow(wrong[i][n], kRequestsKept, state);
    }
    EXPECT_TRUE(absl::IsDataLoss(folded)) << "case " << i << ": " << folded;
  }
}

TEST(JournalFoldTest, StepsThatAreSkippedTakeThePlaceOfThoseFromTheFirstOn) {
  JournalState state;
  const auto fold = [&state](const auto& fill) {
    JournalRow row;
    fill(row);
    return FoldRow(row, kRequestsKept, state);
  };
  const auto skip = [&](uint32_t k, int steps, v1::StepResult::Outcome outcome) {
    return fold([&](JournalRow& row) {
      row.mutable_skipped()->set_request_id("a");
      row.mutable_skipped()->set_k(k);
      for (int i = 0; i < steps; ++i) row.mutable_skipped()->add_results()->set_outcome(outcome);
    });
  };
  ASSERT_TRUE(fold([](JournalRow& row) { *row.mutable_lineage_begun() = Begun("L", 1); }).ok());
  EXPECT_TRUE(absl::IsDataLoss(skip(0, 1, v1::StepResult::SKIPPED_EMPTY))) << "of no request";
  ASSERT_TRUE(fold([](JournalRow& row) { *row.mutable_accepted() = Accepted("a", true); }).ok());
  EXPECT_TRUE(absl::IsDataLoss(skip(0, 1, v1::StepResult::APPLIED))) << "it has to be decided";
  ASSERT_TRUE(skip(0, 3, v1::StepResult::SKIPPED_EMPTY).ok());
  EXPECT_EQ(state.requests(0).result().steps_size(), 3);
  ASSERT_TRUE(skip(1, 4, v1::StepResult::SKIPPED_EMPTY).ok());
  EXPECT_EQ(state.requests(0).result().steps_size(), 5) << "those after the first again, and two more";
  EXPECT_EQ(state.requests(0).status().state(), v1::APPLIED);
  EXPECT_EQ(state.step(), 0u);
  EXPECT_EQ(state.kept(0).steps_size(), 0) << "nothing was decided";
}

}  // namespace
}  // namespace stemma::server
