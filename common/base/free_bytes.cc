#include "common/base/free_bytes.h"

#include <sys/statvfs.h>

#include <cerrno>

namespace stemma {

std::optional<uint64_t> FreeBytes(const std::string& path) {
  struct statvfs disk;
  int failed = 0;
  do {
    failed = statvfs(path.c_str(), &disk);
  } while (failed != 0 && errno == EINTR);
  if (failed != 0 || disk.f_blocks == 0) return std::nullopt;  // of no blocks: as file systems of networks say it
  return uint64_t{disk.f_bavail} * disk.f_frsize;
}

}  // namespace stemma
