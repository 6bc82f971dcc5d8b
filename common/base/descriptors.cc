#include "common/base/descriptors.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace stemma {

DescriptorCount CountDescriptors() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  DescriptorCount count = {.limit = limit.rlim_cur};
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end; it.increment(error)) {
    ++count.open;
  }
  count.limit = std::min<uint64_t>(count.limit, 1 << 30);  // may be unlimited
  return count;
}

void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace stemma
