// Writes lines to a file descriptor without ever waiting long: a log must not stop what it tells of. Where it is a pipe
// or a socket whose reader has stopped reading, or a file on a full disk, lines are dropped, and counted in the first
// one that gets through. A line whose beginning got through is no dropped one: its rest goes before all that follows.
//
// Thread-safe. Does not own the descriptor. What goes to a file or a terminal is written as it always is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/unique_fd.h"

namespace stemma {

class LineWriter {
 public:
  // How long one line waits for a reader that does not keep up; those after it do not, until one gets through.
  static constexpr absl::Duration kPatience = absl::Milliseconds(100);

  explicit LineWriter(int fd);

  // Writes `line`, which ends with its line end, in one piece where there is room for it, so that lines of several
  // processes do not mix. `told(n)` makes the line, with its end, that says of n dropped ones. A descriptor that cannot
  // be written drops the line. Returns whether all of it was written.
  template <typename Told>
  bool Write(std::string_view line, const Told& told) {
    MutexLock lock(&mutex_);
    return TryLine(dropped_ > 0 ? std::string(told(dropped_)) : std::string(), line);
  }

 private:
  // Writes what is left of a cut line, then `told` of the dropped ones, then `line`, and notes what did not get
  // through.
  bool TryLine(std::string_view told, std::string_view line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the bytes of `text`, from its beginning, that were written.
  size_t TryWrite(std::string_view text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WaitForRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const UniqueFd reopened_;  // a pipe: what the other processes share stays a descriptor that waits
  const int fd_;             // that one, or what was given
  Mutex mutex_;
  std::string rest_ ABSL_GUARDED_BY(mutex_);  // of the line whose beginning was the last that got through
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace stemma
