// The order of the CUDA copy engine's streams, on a runtime that draws the order in which a device does its work: no
// byte is used before it has come, and no memory is used again before its last reader.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/namespaces.h"
#include "tests/worker/memory/copy_engine_suite.h"
#include "tests/worker/memory/fake_cuda/fake_runtime.h"
#include "worker/memory/cuda_copy_engine.h"

namespace stemma::testing {
namespace {

constexpr uint32_t kSeed = 20261125;
constexpr uint32_t kCases = 200;

uint32_t FirstSeed() {
  const char* seed = std::getenv("STEMMA_SEED");
  return seed == nullptr ? kSeed : static_cast<uint32_t>(std::strtoul(seed, nullptr, 10));
}

// What every copy engine must do, here too.
struct FakeCudaSide {
  FakeCudaSide() {
    StartFakeRuntime(kSeed);
    engine_ = CudaCopyEngine::Create(FakeComputeStream()).value();
  }
  static std::string WhyNot() { return ""; }
  CopyEngine& engine() { return *engine_; }

  using Device = PlainMemory;
  using Host = PlainMemory;

  std::unique_ptr<CudaCopyEngine> engine_;
};

INSTANTIATE_TYPED_TEST_SUITE_P(FakeCuda, CopyEngineTest, FakeCudaSide);
INSTANTIATE_TYPED_TEST_SUITE_P(FakeCuda, CopyEngineDeathTest, FakeCudaSide);

// Entries of a tape that leave a device of few buffers and come back, as OffloadStore moves them: the computation
// writes an entry into a buffer, the buffer is copied out, its memory is used again at once, and later the entry is
// copied into any free buffer and read. Each entry is one number, and what the computation reads must be that number.
class Shuttle {
 public:
  static constexpr size_t kBuffers = 3, kBlocks = 4;

  Shuttle(uint32_t seed, FakeFault fault) : random_(seed) {
    StartFakeRuntime(seed, fault);
    engine_ = CudaCopyEngine::Create(FakeComputeStream()).value();
    for (size_t i = 0; i < kBuffers; ++i) free_buffers_.push_back(i);
    for (size_t i = 0; i < kBlocks; ++i) free_blocks_.push_back(i);
  }

  // Returns how many entries came back as another number.
  int Run(int steps) {
    for (int i = 0; i < steps; ++i) {
      if (!free_buffers_.empty() && !free_blocks_.empty() && random_() % 2 == 0) {
        SendOut();
      } else if (!away_.empty() && !free_buffers_.empty()) {
        BringBack();
      }
      if (random_() % 3 == 0) RunSome();
    }
    while (!away_.empty()) BringBack();
    RunAll();
    engine_.reset();
    return wrong_;
  }

 private:
  struct Away {
    size_t block;
    int number;
  };

  void SendOut() {
    const size_t buffer = Take(free_buffers_), block = Take(free_blocks_);
    const int number = ++next_number_;
    FakeLaunch([this, buffer, number] { device_[buffer] = number; });
    const CopyTicket ticket = engine_->StartCopyOut({{&device_[buffer], &host_[block], sizeof(int)}});
    EXPECT_TRUE(engine_->ComputeWaits(ticket).ok());
    free_buffers_.push_back(buffer);  // the allocator gives it away in the order of the compute stream
    away_.push_back({block, number});
  }

  void BringBack() {
    const size_t which = random_() % away_.size();
    const Away entry = away_[which];
    away_.erase(away_.begin() + static_cast<std::ptrdiff_t>(which));
    const size_t buffer = Take(free_buffers_);
    FakeLaunch([this, buffer] { device_[buffer] = -1; });  // its last user's work
    const CopyTicket ticket = engine_->StartCopyIn({{&host_[entry.block], &device_[buffer], sizeof(int)}});
    EXPECT_TRUE(engine_->ComputeWaits(ticket).ok());
    free_blocks_.push_back(entry.block);
    FakeLaunch([this, buffer, number = entry.number] { wrong_ += device_[buffer] != number ? 1 : 0; });
    free_buffers_.push_back(buffer);
  }

  size_t Take(std::vector<size_t>& free) {
    const size_t which = random_() % free.size();
    std::swap(free[which], free.back());
    const size_t taken = free.back();
    free.pop_back();
    return taken;
  }

  std::mt19937 random_;
  std::unique_ptr<CudaCopyEngine> engine_;
  int device_[kBuffers] = {}, host_[kBlocks] = {};
  std::vector<size_t> free_buffers_, free_blocks_;
  std::vector<Away> away_;
  int next_number_ = 0, wrong_ = 0;
};

TEST(CopyOrderTest, NoByteIsUsedBeforeItHasComeAndNoMemoryBeforeItsLastReader) {
  for (uint32_t seed = FirstSeed(); seed < FirstSeed() + kCases; ++seed) {
    EXPECT_EQ(Shuttle(seed, FakeFault::kNone).Run(60), 0) << "STEMMA_SEED=" << seed;
    EXPECT_EQ(FakeRuntimeMisuses(), 0) << "STEMMA_SEED=" << seed;
    EXPECT_EQ(FakeRuntimeObjects(), 0) << "streams and events are given back; STEMMA_SEED=" << seed;
  }
}

// The next launch, which asks for the last error, would take it for its own.
TEST(CopyOrderTest, ACopyThatIsNotDoneLeavesNoErrorBehind) {
  int not_done = 0;
  for (uint32_t seed = kSeed; seed < kSeed + 20; ++seed) {
    StartFakeRuntime(seed);
    const auto engine = CudaCopyEngine::Create(FakeComputeStream()).value();
    int from = 1, to = 0;
    for (int i = 0; i < 9; ++i) FakeLaunch([] {});
    const CopyTicket ticket = engine->StartCopyOut({{&from, &to, sizeof(int)}});
    for (; !engine->Done(ticket).value(); ++not_done) EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
  EXPECT_GT(not_done, 0);
}

// Negative controls: either order that the engine makes, left out, is seen.
int WrongWith(FakeFault fault) {
  int wrong = 0;
  for (uint32_t seed = kSeed; seed < kSeed + 20; ++seed) wrong += Shuttle(seed, fault).Run(60);
  return wrong;
}

TEST(CopyOrderControlTest, AComputationThatDoesNotWaitIsSeen) {
  EXPECT_GT(WrongWith(FakeFault::kComputeWaitsForNothing), 0);
}

TEST(CopyOrderControlTest, CopiesThatDoNotWaitAreSeen) { EXPECT_GT(WrongWith(FakeFault::kCopiesWaitForNothing), 0); }

}  // namespace
}  // namespace stemma::testing
