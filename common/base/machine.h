// Which machine this process is on, whatever a container calls its host.
#pragma once

#include <string>

namespace stemma {

// Returns a name that the kernel drew when it started, and that all of its containers read; empty: it cannot be read.
std::string MachineId();

}  // namespace stemma
