// A table of memory_bench: what APPLY costs with optimizer states on the device and in host memory.
#pragma once

#include <cstdint>
#include <string>

#include "tests/testing/namespaces.h"

namespace stemma::testing {

// Both residencies in turns, in fp32 and in bf16.
void PrintApply(const std::string& model, uint32_t threads, int rounds);

}  // namespace stemma::testing
