// Readings that nobody waits for any more.
#include "server/coordinator/checkpoint_thread.h"

#include <future>
#include <map>
#include <string>

#include "gtest/gtest.h"
#include "tests/server/store/checkpoint_files.h"

namespace stemma::server {
namespace {

ReadCheckpointAction ReadingOf(uint64_t id) { return {.id = id, .name = "none", .manifest_sha256 = ""}; }

TEST(CheckpointThreadTest, AReadingThatIsDroppedBeforeItBeginsIsAnsweredAndNotMade) {
  const testing::TempFolder folder;
  const CheckpointStore store = *CheckpointStore::Open(folder.path());
  std::promise<void> first_is_read, go_on;
  Mutex mutex;
  std::map<uint64_t, absl::StatusCode> answers;
  CheckpointThread thread(&store, ModelConfig(), [&](Event event) {
    const auto& read = std::get<CheckpointReadEvent>(event);
    {
      MutexLock lock(&mutex);
      EXPECT_TRUE(answers.emplace(read.id, read.client_state.status().code()).second) << read.id << " twice";
    }
    if (read.id != 1) return;
    first_is_read.set_value();
    go_on.get_future().wait();
  });
  for (const uint64_t id : {1, 2, 3}) thread.Add(ReadingOf(id));
  first_is_read.get_future().wait();
  thread.Drop({.id = 1});  // it was begun
  thread.Drop({.id = 2});
  const bool at_once = answers.contains(2);
  go_on.set_value();
  EXPECT_TRUE(at_once);
  const auto all_answered = [&] { return answers.size() == 3; };
  {
    MutexLock lock(&mutex);
    mutex.Await(all_answered);
  }
  thread.Stop();
  EXPECT_EQ(answers.at(1), absl::StatusCode::kNotFound);
  EXPECT_EQ(answers.at(2), absl::StatusCode::kCancelled);
  EXPECT_EQ(answers.at(3), absl::StatusCode::kNotFound) << "the others are still read";
}

}  // namespace
}  // namespace stemma::server
