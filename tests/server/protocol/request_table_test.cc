// What is kept of requests, and for how long.
#include "server/protocol/request_table.h"

#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace stemma::server {
namespace {

UpdateRecord Record(const std::string& id, uint64_t bytes = 10) {
  UpdateRecord record;
  record.id = id;
  record.bytes = bytes;
  record.request = std::make_shared<TrainingRequest>();
  return record;
}

TEST(RequestTableTest, OpenRequestsAreCountedUntilTheyAreFinal) {
  RequestTable table(/*requests_kept=*/2);
  table.Insert(Record("a", 10));
  UpdateRecord& b = table.Insert(Record("b", 5));
  EXPECT_EQ(table.open_count(), 2u);
  EXPECT_EQ(table.open_bytes(), 15u);
  table.Finalize(b);
  EXPECT_EQ(table.open_count(), 1u);
  EXPECT_EQ(table.open_bytes(), 10u);
  EXPECT_EQ(table.Find("b")->request, nullptr) << "a finished request holds its payload";
}

TEST(RequestTableTest, TheOldestFinishedRequestIsDroppedAndItsIdRemembered) {
  RequestTable table(/*requests_kept=*/2);
  for (const char* id : {"a", "b", "c"}) table.Finalize(table.Insert(Record(id)));
  EXPECT_EQ(table.Find("a"), nullptr);
  EXPECT_TRUE(table.IsExpired("a"));
  EXPECT_NE(table.Find("b"), nullptr);
  EXPECT_FALSE(table.IsExpired("b"));
  EXPECT_FALSE(table.IsExpired("never"));
}

TEST(RequestTableTest, AnOpenRequestIsNeverDropped) {
  RequestTable table(/*requests_kept=*/1);
  table.Insert(Record("open"));
  for (const char* id : {"a", "b", "c"}) table.Finalize(table.Insert(Record(id)));
  ASSERT_NE(table.Find("open"), nullptr);
  EXPECT_EQ(table.InOrder().size(), 2u);
}

TEST(RequestTableTest, ResultsThatAreDroppedAreCountedNoMore) {
  RequestTable table(/*requests_kept=*/2);
  UpdateRecord record = Record("a");
  auto chunk = std::make_shared<v1::GroupResult>();
  chunk->set_uid("g");
  record.results.push_back(chunk);
  record.status.mutable_result()->add_warnings("w");
  UpdateRecord& kept = table.Insert(std::move(record));
  table.Finalize(kept);
  EXPECT_EQ(kept.result_bytes, chunk->SpaceUsedLong());
  table.DropResults(kept);
  EXPECT_TRUE(kept.results.empty());
  EXPECT_TRUE(kept.results_dropped);
  EXPECT_EQ(kept.result_bytes, 0u);
  EXPECT_FALSE(kept.status.has_result());
}

// Log-probs of responses of three tokens: a rollout is 12 bytes of them and a name.
std::shared_ptr<const v1::GroupResult> ShortResults(int rollouts) {
  auto group = std::make_shared<v1::GroupResult>();
  group->set_uid("g");
  for (int i = 0; i < rollouts; ++i) {
    v1::RolloutResult& rollout = *group->add_rollouts();
    rollout.set_rollout_id("g/" + std::to_string(i));
    rollout.set_log_probs(std::string(12, 'x'));
  }
  return group;
}

// The limit is there so that the rest of the machine's memory stays what it was.
TEST(RequestTableTest, ResultsCountAsTheMemoryThatTheyTake) {
  constexpr int kGroups = 4, kRollouts = 64;
  UpdateRecord record = Record("a");
  for (int i = 0; i < kGroups; ++i) record.results.push_back(ShortResults(kRollouts));
  const uint64_t sent_bytes = kGroups * record.results[0]->ByteSizeLong();
  RequestTable table(/*requests_kept=*/2);
  UpdateRecord& kept = table.Insert(std::move(record));
  table.Finalize(kept);
  EXPECT_GE(kept.result_bytes, kGroups * kRollouts * (sizeof(v1::RolloutResult) + 2 * sizeof(std::string)));
  EXPECT_GT(kept.result_bytes, 4 * sent_bytes) << "control: what is sent says little of it";
}

UpdateRecord Traced(const std::string& id, int steps = 1) {
  UpdateRecord record = Record(id);
  for (int i = 0; i < steps; ++i) {
    v1::StepResult& step = *record.status.mutable_result()->add_steps();
    step.set_step(7);
    step.mutable_trace()->add_ranks()->mutable_spans()->add_spans()->set_name("gradients");
  }
  return record;
}

TEST(RequestTableTest, TracesCountAsResultsAndTheOldestAreDropped) {
  const uint64_t bytes = Traced("a").status.result().steps(0).trace().SpaceUsedLong();
  RequestTable table(/*requests_kept=*/9, /*result_bytes_max=*/2 * bytes);
  for (const char* id : {"a", "b", "c"}) table.Finalize(table.Insert(Traced(id)));
  const UpdateRecord& oldest = *table.Find("a");
  ASSERT_EQ(oldest.status.result().steps_size(), 1);
  EXPECT_FALSE(oldest.status.result().steps(0).has_trace());
  EXPECT_EQ(oldest.status.result().steps(0).step(), 7u) << "the rest of the step stays";
  EXPECT_FALSE(oldest.results_dropped) << "it had no log-probs";
  for (const char* id : {"b", "c"}) {
    EXPECT_TRUE(table.Find(id)->status.result().steps(0).has_trace()) << id;
    EXPECT_EQ(table.Find(id)->result_bytes, bytes) << id;
  }
}

// Nothing is left to drop of "a", whose results went with its lineage, nor of "b", which is no longer known.
TEST(RequestTableTest, ResultsThatAreGoneAreNotDroppedInThePlaceOfOthers) {
  const uint64_t bytes = Traced("a").status.result().steps(0).trace().SpaceUsedLong();
  RequestTable table(/*requests_kept=*/3, /*result_bytes_max=*/3 * bytes);
  const auto end = [&](UpdateRecord record) { table.Finalize(table.Insert(std::move(record))); };
  for (const char* id : {"a", "b"}) end(Traced(id));
  table.DropResults(*table.Find("a"));
  for (const char* id : {"c", "d"}) end(Traced(id));
  EXPECT_EQ(table.Find("a"), nullptr);
  for (const char* id : {"b", "c", "d"}) EXPECT_EQ(table.Find(id)->result_bytes, bytes) << id;
  end(Record("none"));
  EXPECT_EQ(table.Find("b"), nullptr);
  end(Traced("long", /*steps=*/3));
  EXPECT_EQ(table.Find("d")->result_bytes, 0u) << "the oldest that is still known";
  EXPECT_EQ(table.Find("long")->result_bytes, 3 * bytes);
}

TEST(RequestTableTest, AFinishedIdMayBeTakenAgain) {
  RequestTable table(/*requests_kept=*/2);
  table.Finalize(table.Insert(Record("a")));
  UpdateRecord& again = table.Insert(Record("a"));
  EXPECT_EQ(table.Find("a"), &again);
  EXPECT_EQ(table.InOrder().size(), 1u);
  table.Finalize(again);
  table.Finalize(table.Insert(Record("b")));
  EXPECT_NE(table.Find("a"), nullptr);
}

TEST(RequestTableTest, ResultsOfOneWhoseIdIsTakenAgainCountNoMore) {
  const uint64_t bytes = Traced("a").status.result().steps(0).trace().SpaceUsedLong();
  RequestTable table(/*requests_kept=*/9, /*result_bytes_max=*/2 * bytes);
  for (const char* id : {"a", "b", "a"}) table.Finalize(table.Insert(Traced(id)));
  for (const char* id : {"a", "b"}) EXPECT_TRUE(table.Find(id)->status.result().steps(0).has_trace()) << id;
}

}  // namespace
}  // namespace stemma::server
