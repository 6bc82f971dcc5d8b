#include "worker/memory/cpu_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <unordered_map>

#include "worker/memory/slab_arena.h"

namespace stemma::worker {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kLargeBytes = size_t{1} << 20;  // from here on: from the arena

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
    return {current_bytes_, peak_bytes_, static_cast<int64_t>(arena_.mapped_bytes() - arena_.taken_bytes())};
  }
  void ResetPeak() {
    std::lock_guard lock(mutex_);
    peak_bytes_ = current_bytes_;
  }

 private:
  void* Take(size_t bytes) {
    const size_t counted = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    std::lock_guard lock(mutex_);
    void* p = counted < kLargeBytes ? std::aligned_alloc(kAlignment, counted) : arena_.Take(counted);
    if (p == nullptr) throw std::bad_alloc();
    live_[p] = counted;
    current_bytes_ += static_cast<int64_t>(counted);
    peak_bytes_ = std::max(peak_bytes_, current_bytes_);
    return p;
  }

  static void Delete(void* p) {
    if (p != nullptr) Get().Give(p);
  }

  void Give(void* p) {
    std::lock_guard lock(mutex_);
    const auto it = live_.find(p);
    if (it == live_.end()) std::abort();  // not ours: a block freed twice or by the wrong allocator
    const size_t counted = it->second;
    live_.erase(it);
    current_bytes_ -= static_cast<int64_t>(counted);
    counted < kLargeBytes ? std::free(p) : arena_.Give(p);
  }

  std::mutex mutex_;
  SlabArena arena_;
  std::unordered_map<void*, size_t> live_;  // counted bytes
  int64_t current_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

}  // namespace

void InstallCpuAllocator() { c10::SetCPUAllocator(&CountingAllocator::Get(), /*priority=*/100); }
MemoryStats CpuMemoryStats() { return CountingAllocator::Get().stats(); }
void ResetPeakBytes() { CountingAllocator::Get().ResetPeak(); }

}  // namespace stemma::worker
