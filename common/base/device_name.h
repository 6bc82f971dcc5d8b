// A worker's device as it is written: "cpu", "cpu:1". Used by the worker's options and by the server, which orders and
// tells apart the devices of a host. Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace stemma {

struct DeviceName {
  std::string kind;    // "cpu"
  uint32_t index = 0;  // which one of its host

  std::string Text() const;  // "cpu:1"
  auto operator<=>(const DeviceName&) const = default;
};

// Reads `kind` or `kind:index`; without a number it is the first. Errors: InvalidArgument - a kind that is not lower
// case letters, at most 32, an index that is no number from 0 to 4095.
absl::StatusOr<DeviceName> ParseDevice(std::string_view text);

}  // namespace stemma
