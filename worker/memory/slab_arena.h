// Large blocks from a few mappings with huge pages: best fit, split on take, joined with free neighbours on give. Waves
// take and give the same sizes again and again, in nearly the opposite order, so that little is lost between blocks;
// and what one shape freed, another takes, without a page fault.
//
// Thread safety: none; its owner locks. Invariants: blocks of a slab cover it without overlap; two free neighbours
// never stand side by side; no new slab is mapped beside wholly free ones while more than 5/4 of the highest demand is
// mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace stemma::worker {

class SlabArena {
 public:
  SlabArena() = default;
  SlabArena(const SlabArena&) = delete;
  SlabArena& operator=(const SlabArena&) = delete;
  ~SlabArena();

  // 64-byte aligned. Null: the kernel has no memory.
  void* Take(size_t bytes);
  void Give(void* p);  // CHECKs that it was taken here

  size_t mapped_bytes() const { return mapped_bytes_; }
  size_t taken_bytes() const { return taken_bytes_; }
  size_t largest_free_bytes() const { return free_.empty() ? 0 : free_.rbegin()->first; }  // Take maps nothing up to it

 private:
  struct Block {
    size_t bytes = 0;
    bool free = true;
    bool first_of_slab = false;
    size_t slab_bytes = 0;  // of the first block
  };
  using Blocks = std::map<char*, Block>;

  bool MapSlab(size_t bytes);
  void UnmapFreeSlabs();
  void Split(Blocks::iterator block, size_t bytes);
  Blocks::iterator JoinNext(Blocks::iterator block);

  Blocks blocks_;                            // by address
  std::set<std::pair<size_t, char*>> free_;  // by size
  size_t mapped_bytes_ = 0, taken_bytes_ = 0, peak_taken_bytes_ = 0;
};

}  // namespace stemma::worker
