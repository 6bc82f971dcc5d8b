// A disk that is full, as far as a process can make one: while the object lives, no file of this process grows beyond
// so many bytes, and a write that would is an error instead of a signal.
#pragma once

#include <glog/logging.h>
#include <sys/resource.h>

#include <csignal>

#include "tests/testing/namespaces.h"

namespace stemma::testing {

class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    PCHECK(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limit = {.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    PCHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    PCHECK(setrlimit(RLIMIT_FSIZE, &before_) == 0);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*const handler_)(int);
  rlimit before_;
};

}  // namespace stemma::testing
