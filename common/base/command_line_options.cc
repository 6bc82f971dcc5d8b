#include "common/base/command_line_options.h"

#include <cmath>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"

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

CLI::Option* AddBytes(CLI::App* command, const std::string& name, uint64_t& bytes, const std::string& help) {
  return command->add_option(name, bytes, help)
      ->transform(CLI::Validator(
          [](std::string& text) {
            const absl::StatusOr<uint64_t> parsed = ParseByteSize(text);
            if (!parsed.ok()) return std::string(parsed.status().message());
            text = absl::StrCat(*parsed);
            return std::string();
          },
          ""));
}

std::function<std::string(const std::string&)> WholeFromOne(int64_t max) {
  return [max](const std::string& text) {
    int64_t number = 0;
    if (absl::SimpleAtoi(text, &number) && number >= 1 && number <= max) return std::string();
    return absl::StrCat("\"", text, "\" is not a whole number from 1 to ", max);
  };
}

}  // namespace stemma
