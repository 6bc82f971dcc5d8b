#include "common/base/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "common/base/cgroup.h"
#include "glog/logging.h"

namespace stemma {

void ParallelFor(size_t count, size_t threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  const auto take = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> others;  // joined at the end
  try {
    while (others.size() + 1 < std::min(threads, count)) others.emplace_back(take);
  } catch (const std::system_error& error) {
    LOG(WARNING) << "work is done by " << others.size() + 1 << " threads instead of " << std::min(threads, count)
                 << ": " << error.what();
  }
  take();
}

size_t MachineThreads() {
  const int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  return static_cast<size_t>(std::min(cores, CgroupCores(OwnCgroupFolders()).value_or(cores)));
}

}  // namespace stemma
