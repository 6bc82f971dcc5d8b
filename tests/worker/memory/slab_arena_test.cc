#include "worker/memory/slab_arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "common/base/round_up.h"

namespace stemma::worker {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(SlabArenaTest, ABlockThatWasGivenIsTakenAgain) {
  SlabArena arena;
  void* first = arena.Take(8 * kMiB);
  arena.Give(first);
  EXPECT_EQ(arena.Take(8 * kMiB), first);
  arena.Give(first);
}

TEST(SlabArenaTest, NeighboursJoinSoThatALargerBlockFits) {
  SlabArena arena;
  void* a = arena.Take(20 * kMiB);
  void* b = arena.Take(20 * kMiB);
  void* c = arena.Take(20 * kMiB);
  const size_t mapped = arena.mapped_bytes();
  arena.Give(a);
  arena.Give(c);
  arena.Give(b);
  EXPECT_EQ(arena.Take(60 * kMiB), a);
  EXPECT_EQ(arena.mapped_bytes(), mapped);
  arena.Give(a);
}

TEST(SlabArenaTest, WhatIsWhollyFreeGoesBackBeforeMoreThanTheDemandIsMapped) {
  SlabArena arena;
  arena.Give(arena.Take(64 * kMiB));
  void* large = arena.Take(200 * kMiB);
  EXPECT_EQ(arena.mapped_bytes(), 200 * kMiB);
  arena.Give(large);
}

// Its free block is the slab's first one, as of a slab that is wholly free.
TEST(SlabArenaTest, ASlabWithATakenBlockStays) {
  SlabArena arena;
  void* first = arena.Take(60 * kMiB);
  void* second = arena.Take(4 * kMiB);
  EXPECT_EQ(arena.mapped_bytes(), 64 * kMiB);
  arena.Give(first);
  void* larger = arena.Take(61 * kMiB);  // gives back what is wholly free
  EXPECT_EQ(arena.mapped_bytes(), 128 * kMiB);
  std::memset(second, 1, 4 * kMiB);
  arena.Give(second);
  arena.Give(larger);
}

// What was demanded once may be demanded again: up to a quarter more stays mapped.
TEST(SlabArenaTest, FreeSlabsStayWithinAQuarterOfTheHighestDemand) {
  SlabArena arena;
  std::vector<void*> slabs;
  for (int i = 0; i < 5; ++i) slabs.push_back(arena.Take(100 * kMiB));
  for (void* slab : slabs) arena.Give(slab);
  void* within = arena.Take(102 * kMiB);
  EXPECT_EQ(arena.mapped_bytes(), 602 * kMiB);
  void* beyond = arena.Take(104 * kMiB);
  EXPECT_EQ(arena.mapped_bytes(), 206 * kMiB);
  arena.Give(within);
  arena.Give(beyond);
}

TEST(SlabArenaTest, BlocksNeverOverlapUnderAnyOrderOfTakesAndGives) {
  SlabArena arena;
  std::mt19937 random(5);
  struct Taken {
    size_t bytes;
    unsigned char mark;
  };
  std::map<unsigned char*, Taken> taken;
  size_t taken_bytes = 0;
  for (int i = 0; i < 3000; ++i) {
    if (taken.size() < 40 && random() % 3 != 0) {
      const size_t bytes = 1 + random() % 256000;
      auto* p = static_cast<unsigned char*>(arena.Take(bytes));
      ASSERT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
      const auto mark = static_cast<unsigned char>(random());
      std::memset(p, mark, bytes);
      ASSERT_TRUE(taken.insert({p, {bytes, mark}}).second);
      taken_bytes += RoundUp(bytes, size_t{64});
    } else if (!taken.empty()) {
      const auto it = std::next(taken.begin(), static_cast<int64_t>(random() % taken.size()));
      const auto [bytes, mark] = it->second;
      for (size_t j = 0; j < bytes; j += 61) ASSERT_EQ(it->first[j], mark) << "written through another block";
      arena.Give(it->first);
      taken_bytes -= RoundUp(bytes, size_t{64});
      taken.erase(it);
    }
    ASSERT_EQ(arena.taken_bytes(), taken_bytes);
    ASSERT_GE(arena.mapped_bytes(), taken_bytes);
  }
  for (const auto& [p, block] : taken) arena.Give(p);
  EXPECT_EQ(arena.taken_bytes(), 0u);
}

TEST(SlabArenaDeathTest, ABlockGivenTwiceIsABug) {
  SlabArena arena;
  void* p = arena.Take(kMiB);
  arena.Give(p);
  EXPECT_DEATH(arena.Give(p), "given twice");
}

}  // namespace
}  // namespace stemma::worker
