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
  double flops_per_s = 0;       // of matrix products in bf16, dense
  double host_bytes_per_s = 0;  // each way
};

// Returns nothing for a name that is not known.
const PublishedDevice* FindPublishedDevice(std::string_view name);

// Finds a device by what a driver calls it, as "NVIDIA H100 80GB HBM3": the first that is a word of it. Returns nothing
// where none is: "NVIDIA GH200 480GB" is no H200.
const PublishedDevice* FindPublishedHardware(std::string_view text);

std::vector<std::string> PublishedDeviceNames();

// Returns the default rates that follow from what is published, each at the share of it that is reached.
Rates RatesOf(const PublishedDevice& device, RunDtype dtype, v1::OptimizerResidency residency);

}  // namespace stemma::server
