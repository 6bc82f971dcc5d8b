// Spooled requests that are removed beside the coordinator: a disk that is slow to, or hangs, holds up nobody but who
// needs the room.
#include "server/coordinator/spool_removals.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/flag.h"
#include "common/base/free_bytes.h"
#include "common/base/mesh.h"
#include "gtest/gtest.h"
#include "server/coordinator/storage.h"
#include "tests/server/coordinator/spool_unlinks.h"
#include "tests/server/store/drawn_requests.h"
#include "tests/testing/disk_left.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

constexpr absl::Duration kSoon = absl::Milliseconds(1), kLong = absl::Seconds(60);

class SpoolRemovalsTest : public ::testing::Test {
 protected:
  SpoolRemovalsTest() {
    for (const char* name : {"1-1", "1-2"}) std::ofstream(PathOf(name)) << "a request";
  }
  std::string PathOf(const std::string& name) const { return folder_ / ("spool/" + name); }
  bool IsThere(const std::string& name) const { return std::filesystem::exists(PathOf(name)); }
  void WaitUntilRemoving() { ASSERT_TRUE(removing_.AwaitWithin(kLong)); }

  const testing::TempFolder folder_;
  const Spool spool_ = *Spool::Open(folder_.path());
  Flag removing_, let_go_;
  const testing::SpoolUnlinks hung_{[this] {
    removing_.Set();
    CHECK(let_go_.AwaitWithin(kLong)) << "it is not let go";
    return 0;
  }};
  SpoolRemovals removals_{&spool_};
};

TEST_F(SpoolRemovalsTest, FilesGoBesideWhoeverAddsThem) {
  EXPECT_FALSE(removals_.AwaitGone(0, kLong)) << "there is none";
  removals_.Add("1-1");
  removals_.Add("1-2");
  WaitUntilRemoving();
  EXPECT_TRUE(IsThere("1-1") && IsThere("1-2"));
  let_go_.Set();
  EXPECT_TRUE(removals_.AwaitGone(0, kLong));
  EXPECT_FALSE(IsThere("1-1") || IsThere("1-2"));
  EXPECT_EQ(removals_.ended(), 2u);
  EXPECT_TRUE(removals_.AwaitGone(1, kLong)) << "one ended since: it may have made room";
  EXPECT_FALSE(removals_.AwaitGone(2, kLong));
}

// Requests come one after another: each would wait as long again, and whatever is behind it.
TEST_F(SpoolRemovalsTest, ARemovalThatHangsIsWaitedForOnce) {
  removals_.Add("1-1");
  WaitUntilRemoving();
  EXPECT_FALSE(removals_.AwaitGone(0, kSoon)) << "none has ended";
  const double begun_s = RealClock().MonotonicSeconds();
  for (int request = 0; request < 3; ++request) EXPECT_FALSE(removals_.AwaitGone(0, kLong / 3));
  EXPECT_LT(RealClock().MonotonicSeconds() - begun_s, absl::ToDoubleSeconds(kLong / 6));
  let_go_.Set();
  while (removals_.ended() == 0 && RealClock().MonotonicSeconds() - begun_s < absl::ToDoubleSeconds(kLong)) {
    RealClock().Sleep(kSoon);
  }
  removals_.Add("1-2");
  EXPECT_TRUE(removals_.AwaitGone(1, kLong)) << "the disk has answered";
  EXPECT_FALSE(IsThere("1-2"));
}

TEST_F(SpoolRemovalsTest, OneThatCannotBeRemovedStaysAndTheNextGoes) {
  std::filesystem::create_directory(folder_ / "spool/folder");
  let_go_.Set();
  removals_.Add("folder");
  removals_.Add("no/name");
  removals_.Add("none");
  removals_.Add("1-2");
  removals_.AwaitGone(0, kLong);
  EXPECT_TRUE(IsThere("folder"));
  EXPECT_FALSE(IsThere("1-2"));
}

TEST_F(SpoolRemovalsTest, AStopLeavesWhatTheDiskHasNotBegun) {
  removals_.Add("1-1");
  removals_.Add("1-2");
  WaitUntilRemoving();
  EXPECT_EQ(removals_.StopBy(StopDeadlineIn(kSoon)), "removing spool/1-1");
  const double begun_s = RealClock().MonotonicSeconds();
  EXPECT_FALSE(removals_.AwaitGone(0, kLong / 3));
  EXPECT_LT(RealClock().MonotonicSeconds() - begun_s, absl::ToDoubleSeconds(kLong / 6))
      << "a plan would hold up the stop";
  let_go_.Set();
  EXPECT_EQ(removals_.StopBy(absl::InfiniteFuture()), "");
  EXPECT_FALSE(IsThere("1-1"));
  EXPECT_TRUE(IsThere("1-2")) << "the next start removes it";
}

// A client that waits for a checkpoint before it sends more finds the room that the checkpoint made.
class RoomOfRemovalsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Storage>> opened = Storage::Open(folder_.path(), /*requests_kept=*/4);
    ASSERT_THAT(opened, testing::IsOk());
    storage_ = *std::move(opened);
    ASSERT_THAT(Keep("1-1"), testing::IsOk());
    testing::SetFreeBytes(kReservedForRowsBytes - 1);
  }
  absl::Status Keep(const std::string& name) const {
    return storage_->Keep(name, DrawnRequest(1, 1, 10), DrawnPlan(1, 1), MakeMesh({.dp = 1})).status();
  }
  // The removal ends when whoever needs room has been told that there is none, and before it waits.
  void RemoveBetween(const std::string& name) {
    storage_->Remove(name);
    testing::AfterFreeBytesAreTaken([this, name] {
      let_go_.Set();
      while (std::filesystem::exists(folder_ / ("spool/" + name))) RealClock().Sleep(kSoon);
      RealClock().Sleep(absl::Milliseconds(50));  // until the thread has taken it off its list
    });
  }

  const testing::FreeBytesGuard guard_;
  const testing::TempFolder folder_;
  Flag let_go_;
  const testing::SpoolUnlinks slow_{[this] {
    CHECK(let_go_.AwaitWithin(kLong)) << "it is not let go";
    RealClock().Sleep(absl::Milliseconds(50));
    testing::SetFreeBytes(2 * kReservedForRowsBytes);
    return 0;
  }};
  std::unique_ptr<Storage> storage_;
};

TEST_F(RoomOfRemovalsTest, ARequestFindsTheRoomOfFilesThatAreBeingRemoved) {
  EXPECT_TRUE(HasReason(Keep("1-2"), Reason::kDiskFull)) << "none is being removed";
  let_go_.Set();
  storage_->Remove("1-1");
  EXPECT_THAT(Keep("1-2"), testing::IsOk());
}

TEST_F(RoomOfRemovalsTest, RowsFindTheRoomOfFilesThatAreBeingRemoved) {
  EXPECT_TRUE(HasReason(storage_->CheckRoom(), Reason::kDiskFull)) << "none is being removed";
  let_go_.Set();
  storage_->Remove("1-1");
  EXPECT_THAT(storage_->CheckRoom(), testing::IsOk());
}

TEST_F(RoomOfRemovalsTest, ARequestFindsTheRoomOfAFileThatWentMeanwhile) {
  RemoveBetween("1-1");
  EXPECT_THAT(Keep("1-2"), testing::IsOk());
}

TEST_F(RoomOfRemovalsTest, RowsFindTheRoomOfAFileThatWentMeanwhile) {
  RemoveBetween("1-1");
  EXPECT_THAT(storage_->CheckRoom(), testing::IsOk());
}

}  // namespace
}  // namespace stemma::server
