// The backend that a test runs on: the CPU's, or the one that the environment variable STEMMA_TEST_BACKEND names
// ("cpu", "composed"), so that one suite runs on each.
#pragma once

#include <memory>

#include "tests/testing/namespaces.h"
#include "worker/backend/backend.h"
#include "worker/backend/cpu/split_attention.h"

namespace stemma::testing {

Backend MakeTestBackend();

// One for the whole process.
const Backend& TestBackend();

// Whether tests run on our fused kernels: what only they promise is skipped elsewhere.
bool OnCpuBackend();

// Split attention over a kernel that outlives it.
SplitAttention SplitOver(const AttentionKernel& kernel);

}  // namespace stemma::testing
