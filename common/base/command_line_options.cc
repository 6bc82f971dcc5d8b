#include "common/base/command_line_options.h"

#include <cmath>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace stemma {
namespace {

std::string BoundsText(const NumberRange& range) {
  if (std::isfinite(range.min) && std::isfinite(range.max)) return absl::StrCat(" from ", range.min, " to ", range.max);
  if (!std::isfinite(range.min)) return "";
  return range.above_min ? absl::StrCat(" above ", range.min) : absl::StrCat(" of at least ", range.min);
}

// The problem with `text`; empty: none.
std::string NumberProblem(const std::string& text, const NumberRange& range) {
  double number = 0;
  const bool finite = absl::SimpleAtod(text, &number) && std::isfinite(number);
  const bool inside = number <= range.max && (range.above_min ? number > range.min : number >= range.min);
  if (finite && inside) return "";
  return absl::StrCat("\"", text, "\" is not a finite number", BoundsText(range));
}

}  // namespace

CLI::Option* AddNumber(CLI::App* command, const std::string& name, double& value, const std::string& help,
                       const NumberRange& range) {
  return command->add_option(name, value, help)
      ->check([range](const std::string& text) { return NumberProblem(text, range); }, "");
}

}  // namespace stemma
