// What every file system says that it has left, in programs that this is linked into.
#pragma once

#include <cstdint>

namespace stemma::testing {

// Makes every file system say that it has so many bytes left; -1: what it has.
void SetFreeBytes(int64_t bytes);

// Takes these from what SetFreeBytes has set.
void UseFreeBytes(int64_t bytes);

// Makes the next one that is asked fail with this errno, once.
void FailFreeBytes(int error);

// Every file system has what it has.
struct FreeBytesGuard {
  ~FreeBytesGuard() { SetFreeBytes(-1); }
};

// While it lives, every file system says that it has no blocks at all, as some of networks do.
class NoBlocks {
 public:
  NoBlocks();
  ~NoBlocks();
  NoBlocks(const NoBlocks&) = delete;
  NoBlocks& operator=(const NoBlocks&) = delete;
};

// While it lives, no file system says anything: whoever asks waits.
class HungFreeBytes {
 public:
  HungFreeBytes();
  ~HungFreeBytes();
  HungFreeBytes(const HungFreeBytes&) = delete;
  HungFreeBytes& operator=(const HungFreeBytes&) = delete;
};

}  // namespace stemma::testing
