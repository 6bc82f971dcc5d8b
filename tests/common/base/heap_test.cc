// Memory of a thread that is not the main one, freed in small blocks with nothing behind them.
#include "common/base/heap.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
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

constexpr int kNothingTaken = 255;

// Returns how many MiB more are resident after a thread has taken and freed 32 MiB and the heap was trimmed.
int LeftMiB() {
  int left = kNothingTaken;
  std::thread([&left] {
    constexpr size_t kBlocks = 256 << 10, kBlockBytes = 112;  // the arrays of a rollout of 28 tokens
    std::vector<std::unique_ptr<char[]>> blocks(kBlocks);
    const int64_t before = ResidentBytes();
    for (auto& block : blocks) {
      block = std::make_unique<char[]>(kBlockBytes);
      block[0] = 1;
    }
    const int64_t taken = ResidentBytes() - before;
    for (auto& block : blocks) block.reset();
    malloc_trim(0);
    if (taken > int64_t{28} << 20) left = static_cast<int>((ResidentBytes() - before) >> 20);
  }).join();
  return left;
}

// The heap keeps its setting as long as its process lives: each of the two is measured in a process of its own.
TEST(HeapTest, WhatAThreadFreedLastGoesBackToo) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator keeps what is freed";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  int left_before = 0, left = kNothingTaken;
  const auto take = [](int& code) {
    return [&code](int status) {
      code = WEXITSTATUS(status);
      return WIFEXITED(status);
    };
  };
  EXPECT_EXIT(_exit(LeftMiB()), take(left_before), "");
  EXPECT_EXIT((JoinFreedBlocks(), _exit(LeftMiB())), take(left), "");
  ASSERT_NE(left_before, kNothingTaken) << "control";
  if (left_before < 16) GTEST_SKIP() << "the heap gives it back by itself, as with glibc.malloc.mxfast=0";
  EXPECT_LT(left, 4);
}

}  // namespace
}  // namespace stemma
