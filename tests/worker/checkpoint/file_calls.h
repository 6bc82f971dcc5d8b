// What a program under test asks of the file system, and failures that a disk would have.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/testing/disk_left.h"

namespace stemma::testing {

// Returns the names of the files that were fsynced since the last call, in order.
std::vector<std::string> TakeSyncedFiles();

// Makes each pwrite write at most so many bytes, and interrupts the first attempt of each; 0: as it is.
void CutWrites(size_t bytes_max);

// Makes writing to a file whose path ends so fail with this errno, once so many bytes of it were written; error 0: none
// fails. FailSyncsOf does it to fsync.
void FailWritesOf(const std::string& path_end, int error, size_t bytes_before = 0);
void FailSyncsOf(const std::string& path_end, int error);

// Everything is as it was.
struct FileCallsGuard {
  ~FileCallsGuard() {
    CutWrites(0);
    FailWritesOf("", 0);
    FailSyncsOf("", 0);
    SetFreeBytes(-1);
  }
};

}  // namespace stemma::testing
