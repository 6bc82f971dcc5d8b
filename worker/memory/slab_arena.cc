#include "worker/memory/slab_arena.h"

#include <glog/logging.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "common/base/round_up.h"

namespace stemma::worker {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSlabBytesMin = size_t{64} << 20;

}  // namespace

SlabArena::~SlabArena() {
  CHECK_EQ(taken_bytes_, 0u) << "blocks outlive their arena";
  UnmapFreeSlabs();
}

void* SlabArena::Take(size_t bytes) {
  bytes = RoundUp(std::max(bytes, kAlignment), kAlignment);
  auto fit = free_.lower_bound({bytes, nullptr});
  if (fit == free_.end()) {
    // What is free but fits nobody may stay up to a quarter of the highest demand: the next shape may want it.
    const size_t demand_bytes = std::max(peak_taken_bytes_, taken_bytes_ + bytes);
    if (mapped_bytes_ + bytes > demand_bytes / 4 * 5) UnmapFreeSlabs();
    if (!MapSlab(bytes)) return nullptr;
    fit = free_.lower_bound({bytes, nullptr});
  }
  const auto block = blocks_.find(fit->second);
  free_.erase(fit);
  Split(block, bytes);
  block->second.free = false;
  taken_bytes_ += block->second.bytes;
  peak_taken_bytes_ = std::max(peak_taken_bytes_, taken_bytes_);
  return block->first;
}

void SlabArena::Give(void* p) {
  auto block = blocks_.find(static_cast<char*>(p));
  CHECK(block != blocks_.end() && !block->second.free) << "a block is given twice, or was never taken";
  taken_bytes_ -= block->second.bytes;
  block->second.free = true;
  block = JoinNext(block);
  if (!block->second.first_of_slab && std::prev(block)->second.free) {
    const auto previous = std::prev(block);
    free_.erase({previous->second.bytes, previous->first});
    block = JoinNext(previous);
  }
  free_.insert({block->second.bytes, block->first});
}

bool SlabArena::MapSlab(size_t bytes) {
  const size_t slab_bytes = RoundUp(std::max(bytes, kSlabBytesMin), kHugePage);
  void* p = std::aligned_alloc(kHugePage, slab_bytes);
  if (p == nullptr) return false;
  madvise(p, slab_bytes, MADV_HUGEPAGE);
  char* address = static_cast<char*>(p);
  blocks_[address] = {slab_bytes, /*free=*/true, /*first_of_slab=*/true, slab_bytes};
  free_.insert({slab_bytes, address});
  mapped_bytes_ += slab_bytes;
  return true;
}

void SlabArena::UnmapFreeSlabs() {
  for (auto block = blocks_.begin(); block != blocks_.end();) {
    const auto next = std::next(block);
    if (block->second.free && block->second.first_of_slab && block->second.bytes == block->second.slab_bytes) {
      free_.erase({block->second.bytes, block->first});
      mapped_bytes_ -= block->second.bytes;
      std::free(block->first);
      blocks_.erase(block);
    }
    block = next;
  }
}

// The rest of a larger block stays free.
void SlabArena::Split(Blocks::iterator block, size_t bytes) {
  const size_t rest = block->second.bytes - bytes;
  if (rest == 0) return;
  char* address = block->first + bytes;
  blocks_[address] = {rest, /*free=*/true, /*first_of_slab=*/false, 0};
  free_.insert({rest, address});
  block->second.bytes = bytes;
}

// Joins a block that is in no list with a free one behind it.
SlabArena::Blocks::iterator SlabArena::JoinNext(Blocks::iterator block) {
  const auto next = std::next(block);
  if (next == blocks_.end() || !next->second.free || next->second.first_of_slab) return block;
  free_.erase({next->second.bytes, next->first});
  block->second.bytes += next->second.bytes;
  blocks_.erase(next);
  return block;
}

}  // namespace stemma::worker
