// The program that one rank of a test runs: every collective, on drawn sizes and values, against plain sums in float64.
// The same for ranks that are threads and for ranks that are processes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "worker/parallel/communicator.h"

namespace stemma::testing {

struct ProgramResult {
  std::vector<std::string> failures;
  std::string common_digest;  // over what is the same on every rank: sums, gathers, broadcasts
  std::string own_digest;     // over this rank's parts as well
};

// `device`: of the tensors that cross ranks. `count_max`: the most values of a rank's part. REQUIRES: every rank is
// given the same.
ProgramResult RunRankProgram(worker::Communicator& ranks, uint64_t seed, at::Device device = at::kCPU,
                             int64_t count_max = 5000);

// The same of messages alone: all that an axis whose pairs are apart carries of a device.
ProgramResult RunMessageProgram(worker::Communicator& ranks, uint64_t seed, at::Device device);

}  // namespace stemma::testing
