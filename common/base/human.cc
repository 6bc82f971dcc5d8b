#include "common/base/human.h"

#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace stemma {
namespace {

// Three digits, without an exponent below 1000: "9.99", "12.3", "999".
std::string ThreeDigits(double value) {
  if (value >= 99.95) return absl::StrFormat("%.0f", value);
  return value >= 9.995 ? absl::StrFormat("%.1f", value) : absl::StrFormat("%.2f", value);
}

// `value` in the first unit that leaves it below `step`; what rounds up to the step takes the next.
template <size_t kSize>
std::string InUnits(double value, double step, const std::array<const char*, kSize>& units) {
  size_t unit = 0;
  while (unit + 1 < kSize && value >= step * (1 - 0.0005)) {
    value /= step;
    ++unit;
  }
  if (value >= step) return absl::StrCat(absl::StrFormat("%.3g", value), units[unit]);
  const bool whole = unit == 0 && value == std::floor(value);
  return absl::StrCat(whole ? absl::StrFormat("%.0f", value) : ThreeDigits(value), units[unit]);
}

}  // namespace

std::string HumanCount(double count) {
  static constexpr std::array kUnits = {"", "k", "M", "G", "T", "P", "E"};
  return InUnits(count, 1000, kUnits);
}

std::string HumanFlops(double flops) {
  static constexpr std::array kUnits = {" FLOP", " kFLOP", " MFLOP", " GFLOP", " TFLOP", " PFLOP", " EFLOP", " ZFLOP"};
  return InUnits(flops, 1000, kUnits);
}

std::string HumanBytes(double bytes) {
  static constexpr std::array kUnits = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
  return InUnits(bytes, 1024, kUnits);
}

std::string HumanSeconds(double seconds) {
  if (seconds == 0) return "0 s";
  if (seconds < 999.5e-6) return ThreeDigits(seconds * 1e6) + " us";
  if (seconds < 0.9995) return ThreeDigits(seconds * 1e3) + " ms";
  if (seconds < 119.5) return ThreeDigits(seconds) + " s";
  const double minutes = std::floor(std::round(seconds) / 60);
  if (minutes < 120) return absl::StrFormat("%.0f min %.0f s", minutes, std::round(seconds) - 60 * minutes);
  return ThreeDigits(seconds / 3600) + " h";
}

std::string HumanRatio(double ratio) { return ThreeDigits(ratio) + "x"; }

}  // namespace stemma
