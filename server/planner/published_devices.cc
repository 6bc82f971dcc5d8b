#include "server/planner/published_devices.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace stemma::server {
namespace {

// NVIDIA's data sheets: H100 SXM 80 GB at 3.35 TB/s, H200 SXM 141 GB at 4.8 TB/s, both with 989 TFLOP/s; DGX H100 and
// H200: 2 TB for eight. H20, of which there is no public sheet, as its vendors list it: 96 GB at 4.0 TB/s, 148 TFLOP/s.
constexpr int64_t kGb = 1'000'000'000, kHostBytes = 2'000 * kGb / 8;
constexpr double kH200BytesPerS = 4.8e12, kH200FlopsPerS = 989e12;
constexpr WorkerMemory MemoryOf(int64_t gb) { return {gb * kGb, kHostBytes, gb * kGb}; }
constexpr std::array<PublishedDevice, 3> kDevices = {{{"h100", MemoryOf(80), 3.35e12, kH200FlopsPerS},
                                                      {"h200", MemoryOf(141), kH200BytesPerS, kH200FlopsPerS},
                                                      {"h20", MemoryOf(96), 4.0e12, 148e12}}};

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
  const double products = kH200FlopsPerS / device.flops_per_s;
  for (const Rate rate : {kLinear, kHead, kAttentionForward, kAttentionBackward}) rates[rate] *= products;
  // Optimizer states that come from the host and go there take their time on the way.
  if (residency != v1::HOST) rates[kParameter] *= slower;
  return rates;
}

}  // namespace stemma::server
