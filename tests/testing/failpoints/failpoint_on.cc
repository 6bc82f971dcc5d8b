// The folder $STEMMA_FAILPOINTS arms places while the process runs: its file PLACE@RANK holds an action, is taken by
// the first process that passes, and acts once.
//
//   kill   SIGKILL to the process itself
//   stop   SIGSTOP
//   exit   _exit(1): streams and sockets close, nothing else does
//   hold   makes PLACE@RANK.held and waits until that is removed
//   delay  sleeps 300 ms
//   fail   lets what follows fail, where the place says that it can
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

// True: what follows is to fail.
bool Act(const std::string& action, const std::string& path) {
  LOG(WARNING) << "failpoint " << path << ": " << action;
  if (action == "kill") {
    raise(SIGKILL);
  } else if (action == "stop") {
    raise(SIGSTOP);
  } else if (action == "exit") {
    _exit(1);
  } else if (action == "delay") {
    RealClock().Sleep(absl::Milliseconds(300));
  } else if (action == "hold") {
    Hold(path);
  } else {
    CHECK_EQ(action, "fail") << path;
  }
  return action == "fail";
}

}  // namespace

void Failpoint(std::string_view place, uint32_t rank) {
  CHECK(!FailpointFails(place, rank)) << place << " cannot fail";
}

bool FailpointFails(std::string_view place, uint32_t rank) {
  const char* folder = getenv("STEMMA_FAILPOINTS");
  if (folder == nullptr) return false;
  const std::string path = absl::StrCat(folder, "/", std::string(place), "@", rank);
  std::string action;
  if (std::ifstream file(path); !(file >> action)) return false;
  // Several processes may read it; the one that removes it acts.
  std::error_code error;
  return std::filesystem::remove(path, error) && Act(action, path);
}

}  // namespace stemma
