#include "worker/memory/cpu_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

namespace stemma {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kLargeBytes = size_t{1} << 20;  // from here on: own mapping, cached
constexpr size_t kHugePage = size_t{2} << 20;

// Eight classes per power of two: a block is at most an eighth larger than what was asked for.
size_t SizeClass(size_t bytes) {
  const size_t step = std::max(std::bit_floor(bytes) / 8, kAlignment);
  return (bytes + step - 1) / step * step;
}

void* MapBlock(size_t bytes) {
  void* p = std::aligned_alloc(kHugePage, (bytes + kHugePage - 1) / kHugePage * kHugePage);
  if (p == nullptr) throw std::bad_alloc();
  madvise(p, bytes, MADV_HUGEPAGE);
  return p;
}

class CountingAllocator final : public c10::Allocator {
 public:
  static CountingAllocator& Get() {
    static auto* allocator = new CountingAllocator;  // outlives every tensor, static ones included
    return *allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    void* p = bytes == 0 ? nullptr : Take(bytes);
    return {p, p, &Delete, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Delete; }
  void copy_data(void* dest, const void* src, size_t count) const override { std::memcpy(dest, src, count); }

  MemoryStats stats() {
    std::lock_guard lock(mutex_);
    return {current_bytes_, peak_bytes_, cached_bytes_};
  }
  void ResetPeak() {
    std::lock_guard lock(mutex_);
    peak_bytes_ = current_bytes_;
  }

 private:
  struct Block {
    size_t class_bytes;
    size_t counted_bytes;
  };

  void* Take(size_t bytes) {
    const size_t counted = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const size_t wanted = counted < kLargeBytes ? counted : SizeClass(counted);
    std::lock_guard lock(mutex_);
    void* p = wanted < kLargeBytes ? std::aligned_alloc(kAlignment, wanted) : TakeLarge(wanted);
    if (p == nullptr) throw std::bad_alloc();
    live_[p] = {wanted, counted};
    current_bytes_ += static_cast<int64_t>(counted);
    peak_bytes_ = std::max(peak_bytes_, current_bytes_);
    return p;
  }

  void* TakeLarge(size_t wanted) {
    auto& blocks = free_[wanted];
    if (blocks.empty()) {
      // What is cached never holds more than a quarter of the highest demand: shapes that are gone must not stay.
      if (cached_bytes_ > peak_ever_bytes_ / 4) ReleaseCached();
      peak_ever_bytes_ = std::max(peak_ever_bytes_, current_bytes_ + static_cast<int64_t>(wanted));
      return MapBlock(wanted);
    }
    void* p = blocks.back();
    blocks.pop_back();
    cached_bytes_ -= static_cast<int64_t>(wanted);
    return p;
  }

  void ReleaseCached() {
    for (auto& [bytes, blocks] : free_) {
      for (void* p : blocks) std::free(p);
      blocks.clear();
    }
    cached_bytes_ = 0;
  }

  static void Delete(void* p) {
    if (p != nullptr) Get().Give(p);
  }

  void Give(void* p) {
    std::lock_guard lock(mutex_);
    const auto it = live_.find(p);
    if (it == live_.end()) std::abort();  // not ours: a block freed twice or by the wrong allocator
    const Block block = it->second;
    live_.erase(it);
    current_bytes_ -= static_cast<int64_t>(block.counted_bytes);
    if (block.class_bytes < kLargeBytes) {
      std::free(p);
    } else {
      free_[block.class_bytes].push_back(p);
      cached_bytes_ += static_cast<int64_t>(block.class_bytes);
    }
  }

  std::mutex mutex_;
  std::unordered_map<void*, Block> live_;
  std::unordered_map<size_t, std::vector<void*>> free_;
  int64_t current_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  int64_t peak_ever_bytes_ = 0;
  int64_t cached_bytes_ = 0;
};

}  // namespace

void InstallCpuAllocator() { c10::SetCPUAllocator(&CountingAllocator::Get(), /*priority=*/100); }
MemoryStats CpuMemoryStats() { return CountingAllocator::Get().stats(); }
void ResetPeakBytes() { CountingAllocator::Get().ResetPeak(); }

}  // namespace stemma
