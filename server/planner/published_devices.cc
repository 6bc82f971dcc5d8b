#include "server/planner/published_devices.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace stemma::server {
namespace {

// NVIDIA's data sheets: H100 SXM 80 GB at 3.35 TB/s, H200 SXM 141 GB at 4.8 TB/s; DGX H100 and H200: 2 TB for eight.
constexpr int64_t kGb = 1'000'000'000, kHostBytes = 2'000 * kGb / 8;
constexpr double kH200BytesPerS = 4.8e12;
constexpr std::array<PublishedDevice, 2> kDevices = {
    {{.name = "h100", .memory = {80 * kGb, kHostBytes, 80 * kGb}, .memory_bytes_per_s = 3.35e12},
     {.name = "h200", .memory = {141 * kGb, kHostBytes, 141 * kGb}, .memory_bytes_per_s = kH200BytesPerS}}};

}  // namespace

const PublishedDevice* FindPublishedDevice(std::string_view name) {
  const auto* const found = std::find_if(kDevices.begin(), kDevices.end(),
                                         [&](const PublishedDevice& device) { return device.name == name; });
  return found == kDevices.end() ? nullptr : found;
}

std::vector<std::string> PublishedDeviceNames() {
  std::vector<std::string> names;
  std::transform(kDevices.begin(), kDevices.end(), std::back_inserter(names),
                 [](const PublishedDevice& device) { return std::string(device.name); });
  return names;
}

Rates RatesOf(const PublishedDevice& device, RunDtype dtype, v1::OptimizerResidency residency) {
  Rates rates = DefaultRates(dtype, /*threads=*/1, "cuda", residency);
  const double slower = kH200BytesPerS / device.memory_bytes_per_s;
  for (const Rate rate : {kElement, kMerge, kWave, kWaveBackward}) rates[rate] *= slower;
  // Optimizer states that come from the host and go there take their time on the way.
  if (residency != v1::HOST) rates[kParameter] *= slower;
  return rates;
}

}  // namespace stemma::server
