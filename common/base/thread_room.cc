#include "common/base/thread_room.h"

#include <unistd.h>

#include <algorithm>
#include <latch>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace stemma {

absl::Status CheckThreadRoom(size_t count) {
  std::latch all_counted(1);
  std::vector<std::jthread> threads;  // joined at the end
  absl::Status room;
  try {
    while (threads.size() < count) threads.emplace_back([&] { all_counted.wait(); });
  } catch (const std::system_error& error) {
    room = absl::FailedPreconditionError(absl::StrCat("the process may start ", threads.size(),
                                                      " threads more, and needs ", count, " (", error.what(),
                                                      "): raise RLIMIT_NPROC (`ulimit -u`), which counts all of the "
                                                      "user's threads, or pids.max of its control group"));
  }
  all_counted.count_down();
  return room;
}

size_t NumProcessors() { return static_cast<size_t>(std::max(1L, sysconf(_SC_NPROCESSORS_CONF))); }

}  // namespace stemma
