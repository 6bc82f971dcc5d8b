// Files as bytes, and a limit on their size, for tests of everything that the server stores.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

#include "common/base/process.h"
#include "gtest/gtest.h"

namespace stemma::server {

inline std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void SetBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// While it lives, no file of this process grows past so many bytes.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(uint64_t bytes) {
    IgnoreFileSizeSignal();
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit limit = {bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() { EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0); }

 private:
  rlimit before_;
};

}  // namespace stemma::server
