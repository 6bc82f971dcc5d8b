// What a program under test asks of the file system, and failures that a disk would have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stemma::testing {

// Returns the names of the files that were fsynced since the last call, in order.
std::vector<std::string> TakeSyncedFiles();

// Makes each pwrite write at most so many bytes, and interrupts the first attempt of each; 0: as it is.
void CutWrites(size_t bytes_max);

// Makes writing to a file whose path ends so fail with this errno, once so many bytes of it were written; error 0: none
// fails. FailSyncsOf does it to fsync.
void FailWritesOf(const std::string& path_end, int error, size_t bytes_before = 0);
void FailSyncsOf(const std::string& path_end, int error);

// Makes every file system say that it has so many bytes left; -1: what it has.
void SetFreeBytes(int64_t bytes);

// Everything is as it was.
struct FileCallsGuard {
  ~FileCallsGuard() {
    SetFreeBytes(-1);
    CutWrites(0);
    FailWritesOf("", 0);
    FailSyncsOf("", 0);
  }
};

}  // namespace stemma::testing
