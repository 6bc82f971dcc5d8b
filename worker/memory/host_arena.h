// Host memory for what leaves the device: one slab of the whole capacity, allocated once and cut into blocks, so that
// no copy ever waits for an allocation. Apart from the device: its bytes are counted here and nowhere else. With a GPU
// this is the slab that is page-locked, once, from Create to the end (worker/memory/page_lock.h).
//
// Thread safety: none; used by one thread at a time. Invariant: current_bytes <= capacity_bytes, and no further slab is
// ever mapped.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/memory/page_lock.h"
#include "worker/memory/slab_arena.h"

namespace stemma::worker {

class HostArena {
 public:
  static constexpr int64_t kAlignment = 64;  // of blocks; sizes are rounded up to it

  // capacity_bytes >= 0; 0: takes nothing. page_lock: null for none; outlives the arena.
  // Errors: ResourceExhausted - the kernel does not give that much; those of page_lock.
  static absl::StatusOr<std::unique_ptr<HostArena>> Create(int64_t capacity_bytes, PageLock* page_lock = nullptr);
  ~HostArena();  // CHECKs that every block was given back
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // Null: the capacity is taken, or what is free lies in smaller pieces. bytes > 0.
  void* Take(int64_t bytes);
  void Give(void* block);

  int64_t capacity_bytes() const { return capacity_bytes_; }
  int64_t current_bytes() const { return static_cast<int64_t>(slabs_.taken_bytes()); }

 private:
  explicit HostArena(int64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  const int64_t capacity_bytes_;
  PageLock* page_lock_ = nullptr;  // of locked_; null: nothing is locked
  void* locked_ = nullptr;         // the slab
  SlabArena slabs_;
};

}  // namespace stemma::worker
