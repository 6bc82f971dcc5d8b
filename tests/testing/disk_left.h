// What every file system says that it has left, in programs that this is linked into.
#pragma once

#include <cstdint>

namespace stemma::testing {

// Makes every file system say that it has so many bytes left; -1: what it has.
void SetFreeBytes(int64_t bytes);

// Takes these from what SetFreeBytes has set.
void UseFreeBytes(int64_t bytes);

// Every file system has what it has.
struct FreeBytesGuard {
  ~FreeBytesGuard() { SetFreeBytes(-1); }
};

}  // namespace stemma::testing
