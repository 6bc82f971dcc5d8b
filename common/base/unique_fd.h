// The owner of a file descriptor: closes it once, at its end. Whoever holds one across a return uses this, but for what
// must report close's error: that takes it out and closes it by hand (SyncAndClose in common/base/file.h).
//
// Thread safety: none; move-only.
// Always holds: what one owner has, no other has. Closing leaves errno alone, so that a call that failed can still be
// told behind it.
#pragma once

#include <utility>

namespace stemma {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}  // below 0, as a call that failed returns it: owns none
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(other.Release());
    return *this;
  }
  ~UniqueFd() { Reset(); }

  bool valid() const { return fd_ >= 0; }
  int get() const { return fd_; }
  // Gives it away, to be closed by the caller.
  int Release() { return std::exchange(fd_, -1); }
  // Closes what it has, and owns `fd`.
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

}  // namespace stemma
