// Memory of a thread that is not the main one, freed in small blocks with nothing behind them.
#include "common/base/heap.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

namespace stemma {
namespace {

int64_t ResidentBytes() {
  int64_t all_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> all_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

// Returns how much more is resident after a thread has taken and freed 32 MiB and the heap was trimmed.
int64_t LeftBytes() {
  int64_t left = 0;
  std::thread([&left] {
    constexpr size_t kBlocks = 256 << 10, kBlockBytes = 112;  // the arrays of a rollout of 28 tokens
    std::vector<std::unique_ptr<char[]>> blocks(kBlocks);
    const int64_t before = ResidentBytes();
    for (auto& block : blocks) {
      block = std::make_unique<char[]>(kBlockBytes);
      block[0] = 1;
    }
    EXPECT_GT(ResidentBytes() - before, int64_t{28} << 20) << "control";
    for (auto& block : blocks) block.reset();
    malloc_trim(0);
    left = ResidentBytes() - before;
  }).join();
  return left;
}

TEST(HeapTest, WhatAThreadFreedLastGoesBackToo) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator keeps what is freed";
#endif
  EXPECT_GT(LeftBytes(), int64_t{16} << 20) << "control: else it is of no use";
  JoinFreedBlocks();
  EXPECT_LT(LeftBytes(), int64_t{4} << 20);
}

}  // namespace
}  // namespace stemma
