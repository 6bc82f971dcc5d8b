// What stands in the place of a disk that removes files of a spool, in programs that this is linked into.
#pragma once

#include <functional>

namespace stemma::testing {

// While it lives, each call of unlink about a file of a folder named spool calls `before` first, on its thread, and
// fails with the errno that this returns; 0: it removes the file.
class SpoolUnlinks {
 public:
  explicit SpoolUnlinks(std::function<int()> before);
  ~SpoolUnlinks();
  SpoolUnlinks(const SpoolUnlinks&) = delete;
  SpoolUnlinks& operator=(const SpoolUnlinks&) = delete;
};

}  // namespace stemma::testing
