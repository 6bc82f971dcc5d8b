// The identity that the linker gave to the library this code is in: other code, another id.
#pragma once

#include <string>

namespace stemma::worker::cuda {

// Returns hexadecimal digits; empty where the library was linked without one.
std::string OwnBuildId();

}  // namespace stemma::worker::cuda
