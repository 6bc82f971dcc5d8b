// Devices that are on sale, by what their makers publish: memory, and the rates that follow from it. They are what a
// plan is made by where no worker is there to say what it has. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/dtype_names.h"
#include "server/planner/cost_model.h"
#include "server/planner/memory_division.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::server {

struct PublishedDevice {
  std::string_view name;  // as an option has it
  WorkerMemory memory;    // of a rank that has the device to itself
  double memory_bytes_per_s = 0;
  double flops_per_s = 0;  // of matrix products in bf16, dense
};

// Returns nothing for a name that is not known.
const PublishedDevice* FindPublishedDevice(std::string_view name);

std::vector<std::string> PublishedDeviceNames();

// Returns the default rates of an H200, with those that follow the memory's speed, and those of products, moved to this
// device's.
Rates RatesOf(const PublishedDevice& device, RunDtype dtype, v1::OptimizerResidency residency);

}  // namespace stemma::server
