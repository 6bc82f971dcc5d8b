// The folder $STEMMA_FAILPOINTS arms places while the process runs: its file PLACE@RANK holds an action, is taken by
// the first process that passes, and acts once.
//
//   kill   SIGKILL to the process itself
//   stop   SIGSTOP
//   exit   _exit(1): streams and sockets close, nothing else does
//   hold   makes PLACE@RANK.held and waits until that is removed
//
// Without the folder nothing happens. A file that holds anything else ends the process by CHECK.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "glog/logging.h"

namespace stemma {
namespace {

void Hold(const std::string& path) {
  const std::string held = path + ".held";
  CHECK(std::ofstream(held)) << held;
  while (access(held.c_str(), F_OK) == 0) RealClock().Sleep(absl::Milliseconds(10));
}

void Act(const std::string& action, const std::string& path) {
  LOG(WARNING) << "failpoint " << path << ": " << action;
  if (action == "kill") {
    raise(SIGKILL);
  } else if (action == "stop") {
    raise(SIGSTOP);
  } else if (action == "exit") {
    _exit(1);
  } else {
    CHECK_EQ(action, "hold") << path;
    Hold(path);
  }
}

}  // namespace

void Failpoint(std::string_view place, uint32_t rank) {
  const char* folder = getenv("STEMMA_FAILPOINTS");
  if (folder == nullptr) return;
  const std::string path = absl::StrCat(folder, "/", std::string(place), "@", rank);
  std::string action;
  if (std::ifstream file(path); !(file >> action)) return;
  // Several processes may read it; the one that removes it acts.
  if (std::error_code error; std::filesystem::remove(path, error)) Act(action, path);
}

}  // namespace stemma
