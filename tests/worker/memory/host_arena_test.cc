#include "worker/memory/host_arena.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>

#include "tests/testing/status_matchers.h"

namespace stemma::worker {
namespace {

constexpr int64_t kKiB = 1024;

TEST(HostArenaTest, TakesUpToItsCapacityAndNoMore) {
  auto arena = HostArena::Create(4 * kKiB).value();
  void* a = arena->Take(3 * kKiB);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(arena->Take(kKiB + 1), nullptr);
  void* b = arena->Take(kKiB);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(arena->current_bytes(), 4 * kKiB);
  arena->Give(a);
  arena->Give(b);
}

TEST(HostArenaTest, CountsCurrentBytesRoundedTo64) {
  auto arena = HostArena::Create(4 * kKiB).value();
  void* a = arena->Take(65);
  void* b = arena->Take(1);
  EXPECT_EQ(arena->current_bytes(), 192);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % HostArena::kAlignment, 0u);
  arena->Give(a);
  EXPECT_EQ(arena->current_bytes(), 64);
  arena->Give(b);
  EXPECT_EQ(arena->current_bytes(), 0);
}

TEST(HostArenaTest, RefusesWhatFitsNoHoleAndStaysWithinItsSlab) {
  constexpr int64_t kCapacity = int64_t{128} << 20;  // a slab of exactly this size
  auto arena = HostArena::Create(kCapacity).value();
  void* blocks[4];
  for (void*& block : blocks) block = arena->Take(kCapacity / 4);
  const auto* first = static_cast<char*>(blocks[0]);
  arena->Give(blocks[0]);
  arena->Give(blocks[2]);
  EXPECT_EQ(arena->Take(kCapacity / 2), nullptr) << "half is free, in two pieces";
  arena->Give(blocks[1]);
  void* joined = arena->Take(kCapacity / 2);
  EXPECT_EQ(joined, first);
  arena->Give(joined);
  arena->Give(blocks[3]);
}

TEST(HostArenaTest, WithoutCapacityTakesNothing) { EXPECT_EQ(HostArena::Create(0).value()->Take(1), nullptr); }

TEST(HostArenaTest, MoreThanTheHostHasIsRefusedWithTheBytes) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer ends the process instead";
#endif
  EXPECT_THAT(
      HostArena::Create(int64_t{1} << 60),
      testing::StatusIs(absl::StatusCode::kResourceExhausted, ::testing::HasSubstr("1152921504606846976 bytes")));
}

class FakePageLock final : public PageLock {
 public:
  absl::Status Lock(void* begin, int64_t bytes) override {
    if (fails) return absl::ResourceExhaustedError("the limit of locked memory is 64 KiB");
    if (device_failed) return absl::UnavailableError("an ECC error");
    locked[begin] = bytes;
    return absl::OkStatus();
  }
  void Unlock(void* begin) override {
    *static_cast<volatile char*>(begin) = 1;  // the memory is still there
    EXPECT_EQ(locked.erase(begin), 1u);
  }

  bool fails = false, device_failed = false;
  std::map<void*, int64_t> locked;
};

// So much of the capacity is taken that the block lies behind the first 4 KiB of the slab, which is larger.
TEST(HostArenaTest, ABlockBehindAHoleIsLockedToo) {
  FakePageLock lock;
  auto arena = HostArena::Create(4 * kKiB + 1, &lock).value();
  const auto [begin, bytes] = *lock.locked.begin();
  void* hole = arena->Take(kKiB);
  void* before = arena->Take(kKiB);
  arena->Give(hole);
  void* block = arena->Take(3 * kKiB);
  const int64_t end = static_cast<char*>(block) + 3 * kKiB - static_cast<char*>(begin);
  EXPECT_GT(end, 4 * kKiB + HostArena::kAlignment) << "control";
  EXPECT_GE(bytes, end);
  arena->Give(before);
  arena->Give(block);
}

TEST(HostArenaTest, LocksTheWholeSlabOnceUntilItEnds) {
  FakePageLock lock;
  auto arena = HostArena::Create(4 * kKiB + 1, &lock).value();
  ASSERT_EQ(lock.locked.size(), 1u);
  const auto [begin, bytes] = *lock.locked.begin();
  void* a = arena->Take(kKiB);
  void* b = arena->Take(3 * kKiB + 1);
  EXPECT_EQ(a, begin);
  EXPECT_GE(static_cast<char*>(begin) + bytes, static_cast<char*>(b) + 3 * kKiB + 1);
  arena->Give(a);
  arena->Give(b);
  EXPECT_EQ(lock.locked.size(), 1u);
  arena.reset();
  EXPECT_TRUE(lock.locked.empty());
}

TEST(HostArenaTest, MemoryThatCannotBeLockedIsRefusedWithTheReason) {
  FakePageLock lock;
  lock.fails = true;
  EXPECT_THAT(HostArena::Create(4 * kKiB, &lock),
              testing::StatusIs(absl::StatusCode::kResourceExhausted,
                                ::testing::AllOf(::testing::HasSubstr("4096 bytes cannot be page-locked"),
                                                 ::testing::HasSubstr("64 KiB"),
                                                 ::testing::HasSubstr("by --host-memory or --optimizer-residency"))));
  lock.fails = false;
  lock.device_failed = true;  // which less memory would not mend
  EXPECT_THAT(HostArena::Create(4 * kKiB, &lock), testing::StatusIs(absl::StatusCode::kUnavailable, "an ECC error"));
}

TEST(HostArenaTest, WithoutCapacityNothingIsLocked) {
  FakePageLock lock;
  EXPECT_TRUE(HostArena::Create(0, &lock).ok());
  EXPECT_TRUE(lock.locked.empty());
}

TEST(HostArenaDeathTest, ABlockThatOutlivesTheArenaIsABug) {
  EXPECT_DEATH(HostArena::Create(kKiB).value()->Take(1), "outlive");
}

}  // namespace
}  // namespace stemma::worker
