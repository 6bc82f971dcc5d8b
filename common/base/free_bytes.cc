#include "common/base/free_bytes.h"

#include <sys/statvfs.h>

namespace stemma {

std::optional<uint64_t> FreeBytes(const std::string& path) {
  struct statvfs disk;
  if (statvfs(path.c_str(), &disk) != 0) return std::nullopt;
  return uint64_t{disk.f_bavail} * disk.f_frsize;
}

}  // namespace stemma
