// A failpoint that a test holds.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/clock.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

// Holds the first passing of a place by a rank (tests/testing/failpoints) until it is let go.
class HeldPlace {
 public:
  HeldPlace(const std::string& folder, const std::string& place, int rank)
      : path_(folder + "/" + place + "@" + std::to_string(rank)) {
    std::filesystem::create_directories(folder);
    setenv("STEMMA_FAILPOINTS", folder.c_str(), 1);
    std::ofstream(path_) << "hold";
  }
  ~HeldPlace() {
    LetGo();
    unsetenv("STEMMA_FAILPOINTS");
  }
  void WaitUntilReached() const {
    while (!std::filesystem::exists(path_ + ".held")) RealClock().Sleep(absl::Milliseconds(1));
  }
  void LetGo() const { std::filesystem::remove(path_ + ".held"); }

 private:
  const std::string path_;
};

}  // namespace stemma::testing
