// Rates before anything was measured: DefaultRates of server/planner/cost_model.h, RatesOf of
// server/planner/published_devices.h.
#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/cost/state_bytes.h"
#include "server/planner/cost_model.h"
#include "server/planner/published_devices.h"

namespace stemma::server {
namespace {

// Whose rates a GPU has that is not in the table.
constexpr char kOfUnknownDevices[] = "h100";

// What of a device's published numbers is reached. Of an H200's 989 TFLOP/s, cuDNN's published attention (8 K rows,
// heads of 128) has 620, and backward 440: 550 where five products are counted and not our four. Products at 790, and
// memory at 4.3 of 4.8 TB/s, are assumed until measured.
constexpr double kProductsReached = 790.0 / 989, kAttentionReached = 620.0 / 989, kBackwardReached = 440.0 / 989;
constexpr double kMemoryReached = 4.3 / 4.8;
// bf16 is what tensor cores are for: fp32 and fp64 run on what is left.
constexpr double kSlowerThanBf16 = 10;
// Rows of the tiles in which products run: those of cuBLAS's fastest kernels have 128 or 256.
constexpr int64_t kTileRows = 128;
// The update's reading and writing of a parameter, its gradient and its states: an estimate.
constexpr double kParameterBytes = 120;
constexpr double kMergedBytes = 8;  // of an element: two parts of an attention output, and their sum

// One core with AVX-512: 150 GFLOP/s of fp32 matrix products, half of it in fp64 and, upcast, in bf16. Ratios are
// those of the ops by themselves in the runs of tests/server/planner/recorded_phases.json: elementwise work is a
// fiftieth of a step, and cannot be told from matrix products but where a policy recomputes it.
Rates CpuRates(RunDtype dtype, int64_t threads) {
  Rates rates;
  const double factor = (dtype == RunDtype::kFp32 ? 1.0 : 2.0) / static_cast<double>(std::max<int64_t>(1, threads));
  rates[kLinear] = factor / 150e9;
  rates[kHead] = factor / 200e9;
  rates[kAttentionForward] = factor / 150e9;
  rates[kAttentionBackward] = factor / 145e9;
  rates[kScoreBlock] = factor * 15e-6;
  rates[kElement] = factor * 0.18e-9;
  rates[kMerge] = factor * 1.2e-9;
  rates[kWave] = 0.4e-9;
  rates[kWaveBackward] = 0.5e-9;
  rates[kParameter] = 3e-9;
  rates[kCopy] = 1 / 8e9;
  rates.source = "a CPU core";
  return rates;
}

// The host's launches have no rate: it runs ahead of the device. In a wave of few rows it may not: about 12 launches of
// 4 us for each layer take 1.5 ms of an 8B model's forward, whose weights take 3.5 ms to be read. Of models below 3B
// waves of less than a tile are predicted too short by what their launches take beyond that, a millisecond or two. With
// experts there are two more for each of them, the host waits before, and each expert's rows fill tiles of their own:
// docs/moe.md.
Rates GpuRates(const PublishedDevice& device, RunDtype dtype) {
  const double factor = dtype == RunDtype::kBf16 ? 1 : kSlowerThanBf16;
  const double bytes_per_s = device.memory_bytes_per_s * kMemoryReached;
  const auto run_bytes = static_cast<double>(RunBytes(dtype)),
             accumulate_bytes = static_cast<double>(AccumulateBytes(dtype));
  Rates rates;
  rates.row_quantum = kTileRows;
  rates.copies_overlap = true;
  rates[kLinear] = rates[kHead] = factor / (device.flops_per_s * kProductsReached);
  rates[kAttentionForward] = factor / (device.flops_per_s * kAttentionReached);
  rates[kAttentionBackward] = factor / (device.flops_per_s * kBackwardReached);
  rates[kElement] = run_bytes / bytes_per_s;
  rates[kMerge] = kMergedBytes / bytes_per_s;
  // A product reads its weights while it computes, so only what one tile of rows waits for them is its wave's. Sums are
  // added to weight gradients in memory: each is read and written.
  const double tile_s = 2 * static_cast<double>(kTileRows) * rates[kLinear];
  rates[kWave] = std::max(run_bytes / bytes_per_s - tile_s, 0.0);
  rates[kWaveBackward] = rates[kWave] + 2 * accumulate_bytes / bytes_per_s;
  rates[kParameter] = kParameterBytes / bytes_per_s;
  rates[kCopy] = 1 / device.host_bytes_per_s;
  rates[kScoreBlock] = 0;  // a fused kernel's blocks of scores are in its FLOPs' rate
  rates.source = absl::StrCat("published figures of ", std::string(device.name));
  return rates;
}

// Adds what follows from copies to the host. Each parameter's states come in and go out where they live there, beside
// their update where copies run beside compute.
Rates WithCopies(Rates rates, RunDtype dtype, v1::OptimizerResidency residency) {
  for (const LinkRates& link : kLinkRates) {
    rates[link.byte] = rates[kCopy];
    rates[link.message] = kMessageSeconds;
  }
  if (residency != v1::HOST) return rates;
  const double copies_s = 2.0 * static_cast<double>(OptimizerBytes(dtype)) * rates[kCopy];
  double& parameter_s = rates[kParameter];
  parameter_s = rates.copies_overlap ? std::max(parameter_s, copies_s) : parameter_s + copies_s;
  return rates;
}

}  // namespace

Rates RatesOf(const PublishedDevice& device, RunDtype dtype, v1::OptimizerResidency residency) {
  return WithCopies(GpuRates(device, dtype), dtype, residency);
}

Rates DefaultRates(RunDtype dtype, int64_t threads, const std::string& device, v1::OptimizerResidency residency) {
  if (!absl::StartsWith(device, "cuda")) return WithCopies(CpuRates(dtype, threads), dtype, residency);
  if (const PublishedDevice* known = FindPublishedHardware(device)) return RatesOf(*known, dtype, residency);
  Rates rates = RatesOf(*FindPublishedDevice(kOfUnknownDevices), dtype, residency);
  absl::StrAppend(&rates.source, ", for want of those of \"", device, "\"");
  return rates;
}

}  // namespace stemma::server
