// What the command lines of all programs share.
#pragma once

#include <limits>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace stemma {

// Bounds of a number on the command line; both belong to it unless `above_min`.
struct NumberRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;
};
inline constexpr NumberRange kAnyNumber;
inline constexpr NumberRange kFromZero = {.min = 0};
inline constexpr NumberRange kAboveZero = {.min = 0, .above_min = true};

// An option that takes a finite number: nan, inf and what overflows a double are refused, which CLI11's own checks let
// pass. Every option of type double is made by this.
CLI::Option* AddNumber(CLI::App* command, const std::string& name, double& value, const std::string& help,
                       const NumberRange& range = kAnyNumber);

}  // namespace stemma
