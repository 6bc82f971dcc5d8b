#include "common/base/machine.h"

#include <fstream>

namespace stemma {

std::string MachineId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

}  // namespace stemma
