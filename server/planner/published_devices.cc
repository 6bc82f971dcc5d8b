#include "server/planner/published_devices.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "absl/strings/ascii.h"

namespace stemma::server {
namespace {

// NVIDIA's data sheets: H100 SXM 80 GB at 3.35 TB/s, H200 SXM 141 GB at 4.8 TB/s, both with 989 TFLOP/s; A100 SXM 80 GB
// at 2.039 TB/s, 312 TFLOP/s; DGX A100 640 GB, H100 and H200: 2 TB for eight. H20, of which there is no public sheet,
// as its vendors list it: 96 GB at 4.0 TB/s, 148 TFLOP/s. Cards of a name that are slower, as those for PCI Express,
// are taken for these until they are measured. To the host: published samples of PCI Express 5 reach 55 GB/s each way,
// of PCI Express 4, which an A100 has, 25.
constexpr int64_t kGb = 1'000'000'000, kHostBytes = 2'000 * kGb / 8;
constexpr double kHopperFlopsPerS = 989e12, kPcie4BytesPerS = 25e9, kPcie5BytesPerS = 55e9;
constexpr WorkerMemory MemoryOf(int64_t gb) { return {gb * kGb, kHostBytes, gb * kGb}; }
constexpr std::array<PublishedDevice, 4> kDevices = {{
    {"h100", MemoryOf(80), 3.35e12, kHopperFlopsPerS, kPcie5BytesPerS},
    {"h200", MemoryOf(141), 4.8e12, kHopperFlopsPerS, kPcie5BytesPerS},
    {"h20", MemoryOf(96), 4.0e12, 148e12, kPcie5BytesPerS},
    {"a100", MemoryOf(80), 2.039e12, 312e12, kPcie4BytesPerS},
}};

}  // namespace

const PublishedDevice* FindPublishedDevice(std::string_view name) {
  const auto* const found = std::find_if(kDevices.begin(), kDevices.end(),
                                         [&](const PublishedDevice& device) { return device.name == name; });
  return found == kDevices.end() ? nullptr : found;
}

const PublishedDevice* FindPublishedHardware(std::string_view text) {
  std::string word;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char letter = i < text.size() ? text[i] : ' ';
    if (absl::ascii_isalnum(static_cast<unsigned char>(letter))) {
      word += absl::ascii_tolower(static_cast<unsigned char>(letter));
      continue;
    }
    if (const PublishedDevice* device = FindPublishedDevice(word)) return device;
    word.clear();
  }
  return nullptr;
}

std::vector<std::string> PublishedDeviceNames() {
  std::vector<std::string> names;
  std::transform(kDevices.begin(), kDevices.end(), std::back_inserter(names),
                 [](const PublishedDevice& device) { return std::string(device.name); });
  return names;
}

}  // namespace stemma::server
