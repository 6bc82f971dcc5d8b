// What every file system says that it has left, in programs that this is linked into.
#pragma once

#include <cstdint>
#include <functional>

namespace stemma::testing {

// Makes every file system say that it has so many bytes left; -1: what it has.
void SetFreeBytes(int64_t bytes);

// Takes these from what SetFreeBytes has set.
void UseFreeBytes(int64_t bytes);

// Makes the next one that is asked fail with this errno, once.
void FailFreeBytes(int error);

// Calls this when the next file system has been asked and before its answer comes, once, on the thread that asks.
void AfterFreeBytesAreTaken(std::function<void()> call);

// Every file system has what it has.
struct FreeBytesGuard {
  ~FreeBytesGuard() { SetFreeBytes(-1); }
};

// What file systems say of what they have left.
enum class DiskAnswer {
  kTruth,     // or what SetFreeBytes has set
  kNoBlocks,  // that they have no blocks at all, as some of networks do
  kNever,     // nothing: whoever asks waits
};

// While it lives, every file system answers so.
class DiskAnswers {
 public:
  explicit DiskAnswers(DiskAnswer answer);
  ~DiskAnswers();
  DiskAnswers(const DiskAnswers&) = delete;
  DiskAnswers& operator=(const DiskAnswers&) = delete;
};

}  // namespace stemma::testing
