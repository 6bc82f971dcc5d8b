// Readings that nobody waits for any more.
#include "server/coordinator/checkpoint_thread.h"

#include <atomic>
#include <filesystem>
#include <future>
#include <map>
#include <string>

#include "common/base/clock.h"
#include "gtest/gtest.h"
#include "server/store/checkpoint_manifest.h"
#include "tests/server/store/checkpoint_files.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

namespace fs = std::filesystem;

// Makes a checkpoint of one file that takes no room and reads as zeros, for many seconds. Its digest is that of other
// bytes. Returns the file.
std::string MakeLargeCheckpoint(const std::string& directory, const std::string& name) {
  constexpr uint64_t kBytes = uint64_t{64} << 30;
  DrawnSave save;
  save.manifest.set_name(name);
  save.manifest.set_version(kManifestVersion);
  internal::v1::CheckpointPart& part = *save.manifest.add_parts();
  part.set_file("model.safetensors");
  part.set_sha256(DigestOfBytes(""));
  part.add_ranges()->set_bytes(kBytes);
  const std::string path = directory + "/checkpoints/" + name;
  fs::create_directory(path);
  const absl::StatusOr<std::string> text = EncodeManifest(save.manifest);
  EXPECT_THAT(text, testing::IsOk());
  SetBytes(path + "/manifest.json", *text);
  SetBytes(path + "/model.safetensors", "");
  fs::resize_file(path + "/model.safetensors", kBytes);
  return path + "/model.safetensors";
}

// Whether this process has the file open.
bool IsOpen(const std::string& file) {
  const fs::path path = fs::canonical(file);
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (fs::read_symlink(entry.path(), gone) == path) return true;
  }
  return false;
}

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

// Without the flag, Stop returns when all 64 GiB were read, and the file is called damaged.
TEST(CheckpointThreadTest, AReadingEndsWithTheThreadAndFindsNothing) {
  constexpr double kPatienceS = 60;
  const testing::TempFolder folder;
  const CheckpointStore store = *CheckpointStore::Open(folder.path());
  const std::string file = MakeLargeCheckpoint(folder.path(), "large");
  absl::Status answer;
  std::atomic<int> progress = 0;
  CheckpointThread thread(&store, ModelConfig(), [&](Event event) {
    if (std::holds_alternative<CheckpointProgressEvent>(event)) {
      ++progress;
    } else {
      answer = std::get<CheckpointReadEvent>(event).client_state.status();
    }
  });
  thread.Add(ReadCheckpointAction{.id = 1, .name = "large", .manifest_sha256 = ""});
  const double begun_s = RealClock().MonotonicSeconds();
  while (!IsOpen(file) || progress < 2) {
    ASSERT_LT(RealClock().MonotonicSeconds(), begun_s + kPatienceS) << "it is not read, or nothing is heard of it";
    RealClock().Sleep(absl::Milliseconds(1));
  }
  thread.Stop();
  EXPECT_TRUE(absl::IsCancelled(answer)) << answer;
}

TEST(CheckpointThreadTest, WhatTheDiskDoesNotEndIsSaidAfterTheTimeThatStopMayTake) {
  const testing::TempFolder folder;
  const CheckpointStore store = *CheckpointStore::Open(folder.path());
  std::promise<void> begun, go_on;
  CheckpointThread thread(&store, ModelConfig(), [&](const Event&) {
    begun.set_value();
    go_on.get_future().wait();
  });
  thread.Add(ReadingOf(1));
  begun.get_future().wait();
  EXPECT_EQ(thread.StopBy(StopDeadlineIn(absl::Milliseconds(1))), "reading checkpoint none");
  go_on.set_value();
  EXPECT_EQ(thread.StopBy(absl::InfiniteFuture()), "");
}

}  // namespace
}  // namespace stemma::server
