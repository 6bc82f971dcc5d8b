#include "worker/memory/host_arena.h"

#include <glog/logging.h>

#include "absl/strings/str_cat.h"
#include "common/base/round_up.h"

namespace stemma::worker {
absl::StatusOr<std::unique_ptr<HostArena>> HostArena::Create(int64_t capacity_bytes, PageLock* page_lock) {
  CHECK_GE(capacity_bytes, 0);
  std::unique_ptr<HostArena> arena(new HostArena(RoundUp(capacity_bytes, kAlignment)));
  if (capacity_bytes == 0) return arena;
  void* all = arena->slabs_.Take(static_cast<size_t>(arena->capacity_bytes_));
  if (all == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the host has no ", capacity_bytes, " bytes for the offload arena"));
  }
  arena->slabs_.Give(all);
  if (page_lock != nullptr) {
    // Blocks may lie anywhere in the slab, which may be larger than the capacity.
    absl::Status status = page_lock->Lock(all, static_cast<int64_t>(arena->slabs_.mapped_bytes()));
    if (absl::IsUnavailable(status)) return status;  // the device has failed
    if (!status.ok()) {
      return absl::Status(
          status.code(),
          absl::StrCat("the offload arena of ", capacity_bytes, " bytes cannot be page-locked (", status.message(),
                       "): keep less in host memory, by --host-memory or --optimizer-residency"));
    }
    arena->page_lock_ = page_lock;
    arena->locked_ = all;
  }
  return arena;
}

HostArena::~HostArena() {
  CHECK_EQ(current_bytes(), 0) << "blocks outlive the host arena";
  if (page_lock_ != nullptr) page_lock_->Unlock(locked_);
}

void* HostArena::Take(int64_t bytes) {
  CHECK_GT(bytes, 0);
  if (bytes > capacity_bytes_ - current_bytes() || bytes > static_cast<int64_t>(slabs_.largest_free_bytes())) {
    return nullptr;
  }
  return slabs_.Take(static_cast<size_t>(bytes));
}

void HostArena::Give(void* block) { slabs_.Give(block); }

}  // namespace stemma::worker
