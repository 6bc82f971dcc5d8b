// A journal whose state is too large for a row, or for its disk: it goes on, and is compacted once it can be.
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/free_bytes.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "server/protocol/history.h"

namespace stemma::server {
namespace {

constexpr uint64_t kFewRequestsKept = 4, kSnapshotBytesMax = 4000;

// The rows that the journal holds: from the last snapshot on.
class HeldRows {
 public:
  explicit HeldRows(Outbox* out) : out_(out) {}

  // Returns how many snapshots came.
  int Take() {
    int snapshots = 0;
    for (const Action& action : out_->Take().actions) {
      const auto* row = std::get_if<JournalAction>(&action);
      if (row == nullptr) continue;
      if (row->replaces) {
        ++snapshots;
        rows_.clear();
        EXPECT_LE(row->body.size(), kSnapshotBytesMax);
      }
      rows_.push_back(*row);
    }
    return snapshots;
  }

  internal::v1::JournalState Fold() const {
    internal::v1::JournalState state;
    for (const JournalAction& action : rows_) {
      internal::v1::JournalRow row;
      EXPECT_TRUE(row.ParseFromString(action.body));
      EXPECT_TRUE(FoldRow(row, kFewRequestsKept, state).ok());
    }
    return state;
  }

 private:
  Outbox* const out_;
  std::vector<JournalAction> rows_;
};

void BeginLineage(History& history) {
  internal::v1::LineageBegun begun;
  begun.set_name("L");
  begun.set_weight_version(1);
  history.BeginLineage(std::move(begun));
}

void Do(const std::string& id, const std::string& warning, History& history) {
  internal::v1::RequestAccepted accepted;
  accepted.set_request_id(id);
  accepted.mutable_begun()->add_warnings(warning);
  history.Accept(std::move(accepted));
  internal::v1::RequestFinished finished;
  finished.set_request_id(id);
  finished.set_state(v1::DONE);
  history.Finish(std::move(finished));
}

TEST(HistorySizeTest, AStateThatIsTooLargeForARowStaysInItsRowsUntilItIsSmaller) {
  Outbox out;
  out.Begin(absl::UnixEpoch());
  History history({.replays = true,
                   .requests_kept = kFewRequestsKept,
                   .snapshot_after_bytes = 2000,
                   .snapshot_bytes_max = kSnapshotBytesMax},
                  &out);
  HeldRows held(&out);
  BeginLineage(history);
  Do("large", std::string(kSnapshotBytesMax, 'x'), history);
  EXPECT_EQ(held.Take(), 0);
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(held.Fold(), history.state()));
  for (int i = 0; i < 200; ++i) Do("r" + std::to_string(i), "small", history);
  EXPECT_GT(held.Take(), 0) << "the large one is not kept any more";
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(held.Fold(), history.state()));
}

TEST(HistorySizeTest, NoSnapshotIsLargerThanARowMayBe) {
  int written = 0, left_out = 0;
  for (size_t length = kSnapshotBytesMax - 80; length < kSnapshotBytesMax - 40; ++length) {
    Outbox out;
    out.Begin(absl::UnixEpoch());
    History history({.replays = true,
                     .requests_kept = kFewRequestsKept,
                     .snapshot_after_bytes = 2000,
                     .snapshot_bytes_max = kSnapshotBytesMax},
                    &out);
    HeldRows held(&out);
    BeginLineage(history);
    Do("large", std::string(length, 'x'), history);
    const int snapshots = held.Take();  // which looks at their sizes
    written += snapshots;
    left_out += 1 - snapshots;
  }
  EXPECT_GT(written, 0);
  EXPECT_GT(left_out, 0);
}

// It is in the log and in the database for a moment, and a row that finds no room ends the server.
TEST(HistorySizeTest, ASnapshotIsWrittenOnceItFindsRoomTwice) {
  Outbox out;
  History history({.replays = true, .requests_kept = kFewRequestsKept, .snapshot_after_bytes = 500}, &out);
  HeldRows held(&out);
  BeginLineage(history);
  held.Take();
  const auto snapshots_with = [&](uint64_t beside_bytes) {
    int snapshots = 0;
    for (int i = 0; i < 100; ++i) {
      const uint64_t free_bytes = kReservedForRowsBytes + 2 * history.state().ByteSizeLong() + beside_bytes;
      out.Begin(absl::UnixEpoch(), [free_bytes] { return std::optional(free_bytes); });
      Do("r" + std::to_string(beside_bytes) + "-" + std::to_string(i), "small", history);
      snapshots += held.Take();
    }
    return snapshots;
  };
  EXPECT_EQ(snapshots_with(0), 0) << "the last request, and a frame, have no room";
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(held.Fold(), history.state()));
  EXPECT_GT(snapshots_with(1000), 0);
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(held.Fold(), history.state()));
}

// It is written around the state as it stands, and read by whatever reads rows.
TEST(HistorySizeTest, ASnapshotHasTheBytesOfARowThatHoldsACopyOfTheState) {
  Outbox out;
  out.Begin(absl::UnixEpoch());
  History history({.replays = true, .requests_kept = 200, .snapshot_after_bytes = 100}, &out);
  BeginLineage(history);
  std::set<size_t> sizes_of_lengths;
  for (int i = 0; i < 100; ++i) {
    out.Take();
    out.Begin(absl::UnixEpoch());
    Do("r" + std::to_string(i), std::string(i == 90 ? 20000 : 3, 'x'), history);
    for (const Action& action : out.Take().actions) {
      const auto* row = std::get_if<JournalAction>(&action);
      if (row == nullptr || !row->replaces) continue;
      internal::v1::JournalRow plain;
      *plain.mutable_snapshot() = history.state();
      EXPECT_EQ(row->body, plain.SerializeAsString());
      EXPECT_EQ(row->kind, plain.row_case());
      sizes_of_lengths.insert(row->body.size() - history.state().ByteSizeLong());
    }
    out.Begin(absl::UnixEpoch());
  }
  EXPECT_EQ(sizes_of_lengths, (std::set<size_t>{3, 4})) << "lengths of two and of three bytes";
}

// Returns whether the next request's rows, some 200 bytes, make a snapshot due.
bool IsDueWith(const JournalBytes& before) {
  Outbox out;
  out.Begin(absl::UnixEpoch());
  History history(
      {.journal_bytes = before, .replays = true, .requests_kept = kFewRequestsKept, .snapshot_after_bytes = 2000},
      &out);
  HeldRows held(&out);
  BeginLineage(history);
  Do("one", "small", history);
  return held.Take() > 0;
}

TEST(HistorySizeTest, WhatEarlierServersWroteCounts) {
  EXPECT_FALSE(IsDueWith({}));
  EXPECT_TRUE(IsDueWith({.rows = 2000}));
  EXPECT_FALSE(IsDueWith({.snapshot = 9000, .rows = 2000})) << "it costs more than there is to save";
  EXPECT_TRUE(IsDueWith({.snapshot = 9000, .rows = 9000}));
}

// A disk that hangs holds up whoever asks what it has left.
TEST(HistorySizeTest, TheDiskIsAskedOnlyWhenTheJournalIsCompacted) {
  Outbox out;
  History history({.replays = true, .requests_kept = kFewRequestsKept, .snapshot_after_bytes = 2000}, &out);
  HeldRows held(&out);
  BeginLineage(history);
  int looks = 0, snapshots = 0;
  for (int i = 0; i < 200; ++i) {
    out.Begin(absl::UnixEpoch(), [&looks]() -> std::optional<uint64_t> {
      ++looks;
      return std::nullopt;  // not known: no reason not to write
    });
    Do("r" + std::to_string(i), "small", history);
    snapshots += held.Take();
  }
  EXPECT_GT(snapshots, 0);
  EXPECT_EQ(looks, snapshots);
}

}  // namespace
}  // namespace stemma::server
