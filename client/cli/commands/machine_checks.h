// What `stemma doctor` looks at before it runs anything: binaries, their libraries, ports, memory, disk, limits.
#pragma once

#include <string>
#include <vector>

#include "client/cli/output/records.h"

namespace stemma::cli {

enum class CheckState { kOk, kWarning, kFailed };

struct Check {
  std::string name;
  CheckState state = CheckState::kOk;
  std::string detail;   // what was found; what to do when it is not ok
  Record numbers = {};  // of the detail, by name, for `-o json`
};

// `data_directory`: where exports would go; "." when empty.
std::vector<Check> CheckMachine(const std::string& data_directory);

Record CheckRecord(const Check& check);

}  // namespace stemma::cli
