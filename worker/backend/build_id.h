// The identity that the linker gave to the program or library that this code was linked into: other code, another id.
// Worker and device library each have a copy.
#pragma once

#include <string>

namespace stemma::worker {

// Returns hexadecimal digits; empty where the library was linked without one.
std::string OwnBuildId();

}  // namespace stemma::worker
