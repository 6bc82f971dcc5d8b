// Keeps somebody who is refused over and over from filling the log: so many lines in ten seconds.
//
// Thread safety: safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace stemma {

class LogLimit {
 public:
  explicit LogLimit(uint64_t lines) : lines_(lines) {}
  // Returns whether a line may be written now.
  bool Take(absl::Time now);
  // Returns what ends that line: how many were left out since the one before it; "": none was. Forgets them.
  std::string LeftOut();

 private:
  const uint64_t lines_;
  Mutex mutex_;
  absl::Time began_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // the ten seconds
  uint64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;                          // of them
  uint64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace stemma
