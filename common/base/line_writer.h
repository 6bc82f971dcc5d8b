// Writes lines to a file descriptor without ever waiting long: a log must not stop what it tells of. Where it is a pipe
// or a socket whose reader has stopped reading, lines are dropped, and counted in the first one that gets through.
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
  // be written drops the line. Returns whether it was written.
  template <typename Told>
  bool Write(std::string_view line, const Told& told) {
    MutexLock lock(&mutex_);
    const bool written = dropped_ > 0 ? TryWrite(std::string(told(dropped_)).append(line)) : TryWrite(line);
    dropped_ = written ? 0 : dropped_ + 1;
    return written;
  }

 private:
  bool TryWrite(std::string_view line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WaitForRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const UniqueFd reopened_;  // a pipe: what the other processes share stays a descriptor that waits
  const int fd_;             // that one, or what was given
  Mutex mutex_;
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace stemma
