// Bytes on the device, counted by the allocator, and the bits that come back.
#include "worker/memory/offload_store.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "tests/testing/namespaces.h"
#include "tests/worker/memory/fake_copy_engine.h"
#include "tests/worker/memory/tape_entries.h"
#include "worker/memory/thread_copy_engine.h"

namespace stemma::testing {
namespace {

constexpr int64_t kRows = 64;
const int64_t kEntryBytes = LayerEntryBytes(kRows);

class OffloadStoreTest : public CountedMemoryTest {
 protected:
  // Entries 0 .. count-1, ProducingEnded.
  void PutAll(OffloadStore& store, int64_t count) {
    for (int64_t entry = 0; entry < count; ++entry) {
      bits_[entry] = BitsOf(LayerEntry(static_cast<uint64_t>(entry), kRows));
      store.Put(entry, LayerEntry(static_cast<uint64_t>(entry), kRows));
    }
    store.ProducingEnded();
  }
  // Those that run, and those that these let begin.
  void EndCopies(OffloadStore& store) {
    while (!engine_.Open().empty()) {
      engine_.EndAll();
      store.Poll();
    }
  }
  void ExpectTaken(OffloadStore& store, int64_t entry) { EXPECT_EQ(BitsOf(store.Take(entry)), bits_[entry]) << entry; }

  std::unique_ptr<HostArena> arena_ = HostArena::Create(8 * kEntryBytes).value();
  FakeCopyEngine engine_;
  std::map<int64_t, std::vector<std::string>> bits_;
};

TEST_F(OffloadStoreTest, DeviceBytesFallWhenACopyHasEndedAndNotBefore) {
  OffloadStore store(/*headroom_bytes=*/0, *arena_, engine_);
  PutAll(store, 3);
  store.Poll();
  EXPECT_EQ(device_bytes(), 3 * kEntryBytes);
  EXPECT_EQ(engine_.Open().size(), 2u);
  engine_.End(engine_.Open()[1]);  // out of order
  EXPECT_EQ(device_bytes(), 3 * kEntryBytes);
  store.Poll();
  EXPECT_EQ(device_bytes(), 2 * kEntryBytes);
  engine_.EndAll();
  store.Poll();
  EXPECT_EQ(device_bytes(), 0);
  EXPECT_EQ(arena_->current_bytes(), 3 * kEntryBytes);
  EXPECT_EQ(store.stats().device_bytes, 0);
  EXPECT_EQ(store.stats().peak_device_bytes, 3 * kEntryBytes);
  for (int64_t entry = 2; entry >= 0; --entry) ExpectTaken(store, entry);
}

TEST_F(OffloadStoreTest, ThePrefetchStaysWithinTheHeadroomAndTheConsumerNeverWaits) {
  OffloadStore store(2 * kEntryBytes, *arena_, engine_);
  PutAll(store, 5);
  EndCopies(store);
  EXPECT_EQ(device_bytes(), 0);
  store.ConsumeSoon();
  for (int64_t entry = 4; entry >= 0; --entry) {
    EXPECT_EQ(device_bytes(), std::min<int64_t>(2, entry + 1) * kEntryBytes);
    engine_.EndAll();
    ExpectTaken(store, entry);
  }
  EXPECT_EQ(engine_.waits, 0);
  EXPECT_EQ(store.stats().demand_loads, 0);
  EXPECT_EQ(device_bytes(), 0);
  EXPECT_EQ(arena_->current_bytes(), 0);
}

TEST_F(OffloadStoreTest, WithoutHeadroomEachEntryIsLoadedOnDemandAlone) {
  OffloadStore store(/*headroom_bytes=*/0, *arena_, engine_);
  PutAll(store, 4);
  EndCopies(store);
  store.ConsumeSoon();
  for (int64_t entry = 3; entry >= 0; --entry) {
    ExpectTaken(store, entry);
    EXPECT_EQ(device_bytes(), 0);
  }
  EXPECT_EQ(store.stats().demand_loads, 4);
  EXPECT_EQ(engine_.waits, 4);
}

TEST_F(OffloadStoreTest, WhatIsTakenWhileItLeavesIsCancelledFirst) {
  OffloadStore store(/*headroom_bytes=*/0, *arena_, engine_);
  PutAll(store, 2);
  ExpectTaken(store, 1);
  EXPECT_EQ(engine_.cancels, 1);
  EXPECT_EQ(arena_->current_bytes(), kEntryBytes);
  ExpectTaken(store, 0);
}

TEST_F(OffloadStoreTest, WhatTheArenaHasNoRoomForStaysOnTheDevice) {
  arena_ = HostArena::Create(kEntryBytes).value();
  OffloadStore store(/*headroom_bytes=*/0, *arena_, engine_);
  PutAll(store, 3);
  engine_.EndAll();
  store.Poll();
  EXPECT_EQ(device_bytes(), 2 * kEntryBytes);
  EXPECT_EQ(store.stats().kept, 2);
  for (int64_t entry = 2; entry >= 0; --entry) ExpectTaken(store, entry);
}

TEST_F(OffloadStoreTest, WhatTheArenaHasRoomForInPiecesOnlyStaysOnTheDevice) {
  constexpr int64_t kSlab = int64_t{64} << 20;  // so that nothing lies behind the capacity
  arena_ = HostArena::Create(kSlab).value();
  void* left = arena_->Take(kEntryBytes - 64);
  void* middle = arena_->Take(64);
  void* right = arena_->Take(arena_->capacity_bytes() - arena_->current_bytes() - (kEntryBytes - 64));
  arena_->Give(left);  // two holes, each 64 bytes too small
  {
    OffloadStore store(/*headroom_bytes=*/0, *arena_, engine_);
    PutAll(store, 1);
    EXPECT_TRUE(engine_.Open().empty());
    EXPECT_EQ(store.stats().kept, 1);
    ExpectTaken(store, 0);
  }
  arena_->Give(middle);
  arena_->Give(right);
}

TEST_F(OffloadStoreTest, DrainToWaitsUntilSoManyBytesAreLeft) {
  OffloadStore store(/*headroom_bytes=*/0, *arena_, engine_);
  PutAll(store, 5);
  store.DrainTo(2 * kEntryBytes);
  EXPECT_EQ(device_bytes(), 2 * kEntryBytes);
  EXPECT_EQ(engine_.waits, 3);
  store.DrainTo(0);
  EXPECT_EQ(device_bytes(), 0);
  for (int64_t entry = 4; entry >= 0; --entry) ExpectTaken(store, entry);
}

TEST_F(OffloadStoreTest, AStoreIsDestroyedWithCopiesInFlight) {
  {
    OffloadStore store(kEntryBytes, *arena_, engine_);
    PutAll(store, 4);
    engine_.EndAll();
    store.Poll();
    store.ConsumeSoon();
    EXPECT_FALSE(engine_.Open().empty());
  }
  EXPECT_EQ(device_bytes(), 0);
  EXPECT_EQ(arena_->current_bytes(), 0);
}

// Any order of puts, polls and takes, with the engine of a CPU.
void RunRandomOrder(uint32_t seed, HostArena& arena, CopyEngine& engine) {
  std::mt19937 random(seed);
  OffloadStore store(static_cast<int64_t>(random() % 200'000), arena, engine);
  std::map<int64_t, std::vector<std::string>> bits;
  const auto take = [&](bool last) {
    const auto it =
        last ? std::prev(bits.end()) : std::next(bits.begin(), static_cast<int64_t>(random() % bits.size()));
    EXPECT_EQ(BitsOf(store.Take(it->first)), it->second);
    bits.erase(it);
  };
  for (int64_t entry = 0; entry < 24; ++entry) {
    const int64_t rows = 16 * static_cast<int64_t>(random() % 8);
    bits[entry] = BitsOf(LayerEntry(entry + 100 * seed, rows));
    store.Put(entry, LayerEntry(entry + 100 * seed, rows));
    if (random() % 4 == 0) store.Poll();
    if (random() % 8 == 0) take(/*last=*/false);
  }
  store.ProducingEnded();
  if (random() % 2 == 0) store.DrainTo(0);
  store.ConsumeSoon();
  const bool backwards = random() % 2 == 0;
  while (!bits.empty() && random() % 40 != 0) take(backwards);  // sometimes destroyed with entries left
}

TEST_F(OffloadStoreTest, TheBitsComeBackInAnyOrderOfPutsAndTakes) {
  ThreadCopyEngine engine;
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    RunRandomOrder(seed, *arena_, engine);
    ASSERT_EQ(device_bytes(), 0);
    ASSERT_EQ(arena_->current_bytes(), 0);
  }
}

// Tells whether each entry comes back right from an engine, over memory that others have written to meanwhile.
bool ComesBack(CopyEngine& engine, HostArena& arena) {
  const int64_t rows = 4096;  // blocks of the allocator that the next taker gets
  OffloadStore store(/*headroom_bytes=*/0, arena, engine);
  const std::vector<std::string> bits = BitsOf(LayerEntry(1, rows));
  store.Put(0, LayerEntry(1, rows));
  store.DrainTo(0);
  LayerEntry(2, rows);
  return BitsOf(store.Take(0)) == bits;
}

TEST_F(OffloadStoreTest, ControlAnEntryThatIsFreedOrReadBeforeItsCopyEndedIsSeenByItsBits) {
  arena_ = HostArena::Create(LayerEntryBytes(4096)).value();
  EXPECT_TRUE(ComesBack(engine_, *arena_));
  LyingCopyEngine lies_out(/*lies_out=*/true), lies_in(/*lies_out=*/false);
  arena_ = HostArena::Create(LayerEntryBytes(4096)).value();  // without the bytes of the right run
  EXPECT_FALSE(ComesBack(lies_out, *arena_));
  EXPECT_FALSE(ComesBack(lies_in, *arena_));
}

}  // namespace
}  // namespace stemma::testing
