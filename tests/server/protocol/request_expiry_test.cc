// Which requests are known: the table of a running server and the journal, which the next one starts from, drop the
// same ended ones, and hold the same open ones. What happens is drawn; STEMMA_SEED draws something else.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/request_state.h"
#include "server/protocol/journal_fold.h"
#include "server/protocol/request_table.h"
#include "tests/testing/draw.h"

namespace stemma::server {
namespace {

class RequestExpiryTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  RequestExpiryTest() : seed_(testing::FirstSeed() + GetParam()), random_(seed_) {}

  size_t Below(size_t count) { return random_() % count; }

  void Fold(const internal::v1::JournalRow& row) {
    const absl::Status status = FoldRow(internal::v1::JournalRow(row), requests_kept_, state_, *requests_);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(FoldRow(row, requests_kept_, folded_alone_).ok());
  }

  void Accept(const std::string& id) {
    internal::v1::JournalRow row;
    row.mutable_accepted()->set_request_id(id);
    Fold(row);
    UpdateRecord record;
    record.id = id;
    table_->Insert(std::move(record));
    open_.push_back(id);
  }

  void End(size_t place) {
    internal::v1::JournalRow row;
    row.mutable_finished()->set_request_id(open_[place]);
    row.mutable_finished()->set_state(v1::CANCELLED);
    Fold(row);
    table_->Finalize(*table_->Find(open_[place]));
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(place));
  }

  // Returns a new id, or that of one which ended, is known, and may run again.
  std::string DrawId(int number) {
    std::vector<std::string> ended;
    for (const UpdateRecord* record : table_->InOrder()) {
      if (record->final()) ended.push_back(record->id);
    }
    return ended.empty() || Below(4) > 0 ? "r" + std::to_string(number) : ended[Below(ended.size())];
  }

  void Compact() {
    internal::v1::JournalRow row;
    *row.mutable_snapshot() = state_;
    Fold(row);
  }

  // Starts the next server, which has what the journal says, and may keep fewer or more of them.
  void Restart() {
    requests_kept_ = 1 + Below(6);
    requests_.emplace(&state_);
    table_.emplace(requests_kept_);
    for (const std::string& id : state_.expired_ids()) table_->RestoreExpired(id);
    for (const internal::v1::KnownRequest& known : state_.requests()) {
      UpdateRecord record;
      record.id = known.request_id();
      record.ended = IsFinal(known.status().state());
      record.end_order = known.end_order();
      table_->Restore(std::move(record));
    }
  }

  void ExpectTheSame() {
    std::set<std::string> of_table, of_journal;
    for (const UpdateRecord* record : table_->InOrder()) of_table.insert(record->id);
    std::vector<std::string> open_of_table, open_of_journal;  // in their order
    for (const UpdateRecord* record : table_->Open()) open_of_table.push_back(record->id);
    for (const internal::v1::KnownRequest& known : state_.requests()) {
      of_journal.insert(known.request_id());
      if (!IsFinal(known.status().state())) open_of_journal.push_back(known.request_id());
    }
    EXPECT_EQ(state_.SerializeAsString(), folded_alone_.SerializeAsString()) << "STEMMA_SEED=" << seed_;
    EXPECT_EQ(of_table, of_journal) << "STEMMA_SEED=" << seed_;
    EXPECT_EQ(open_of_table, open_of_journal) << "STEMMA_SEED=" << seed_;
    EXPECT_EQ(table_->open_count(), open_of_journal.size()) << "STEMMA_SEED=" << seed_;
    for (const std::string& id : state_.expired_ids())
      EXPECT_TRUE(table_->IsExpired(id)) << id << ", STEMMA_SEED=" << seed_;
  }

  const uint32_t seed_;
  std::mt19937 random_;
  uint64_t requests_kept_ = 3;
  internal::v1::JournalState state_, folded_alone_;  // each row by all that were folded before, and by itself
  std::optional<KnownRequests> requests_{&state_};
  std::optional<RequestTable> table_{std::in_place, requests_kept_};
  std::vector<std::string> open_;
};

TEST_P(RequestExpiryTest, TableAndJournalKnowTheSameRequests) {
  for (int number = 0; number < 60; ++number) {
    if (const size_t kind = Below(9); kind == 0) {
      Restart();
    } else if (kind == 1) {
      Compact();
    } else if (kind < 5 || open_.empty()) {
      Accept(DrawId(number));
    } else {
      End(Below(open_.size()));  // the running one, or any that is cancelled
    }
    ExpectTheSame();
    if (HasFailure()) return;
  }
  EXPECT_GT(state_.expired_ids_size(), 0) << "nothing was dropped, STEMMA_SEED=" << seed_;
}

INSTANTIATE_TEST_SUITE_P(Drawn, RequestExpiryTest, ::testing::Range(0U, 20U));

}  // namespace
}  // namespace stemma::server
