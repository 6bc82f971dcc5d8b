#include "common/base/device_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace stemma {
namespace {

constexpr size_t kKindBytesMax = 32;
constexpr uint32_t kIndexMax = 4095;

}  // namespace

std::string DeviceName::Text() const { return absl::StrCat(kind, ":", index); }

absl::StatusOr<DeviceName> ParseDevice(std::string_view text) {
  const size_t colon = text.find(':');
  DeviceName device;
  device.kind = std::string(text.substr(0, colon));
  bool right = !device.kind.empty() && device.kind.size() <= kKindBytesMax &&
               std::all_of(device.kind.begin(), device.kind.end(), absl::ascii_islower);
  if (colon != std::string_view::npos) {
    const std::string index(text.substr(colon + 1));
    right = right && std::all_of(index.begin(), index.end(), absl::ascii_isdigit) &&
            absl::SimpleAtoi(index, &device.index) && device.index <= kIndexMax;
  }
  if (right) return device;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", std::string(text), "\" is no device: a kind and which one of its host, as cpu:0"));
}

}  // namespace stemma
