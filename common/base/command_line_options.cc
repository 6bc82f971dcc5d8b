#include "common/base/command_line_options.h"

#include <algorithm>
#include <cmath>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"
#include "common/base/option_checks.h"

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

CLI::Option* AddChoice(CLI::App* command, const std::string& name, const std::vector<std::string>& words,
                       const std::function<void(size_t index)>& store, const std::string& help) {
  const auto choose = [words, store](const std::string& word) {
    store(static_cast<size_t>(std::find(words.begin(), words.end(), word) - words.begin()));
  };
  return command->add_option_function<std::string>(name, choose, help)->check(OneOf(words), "");
}

void AddLogOptions(CLI::App* command, LogOptions& options) {
  const auto formats = LogFormats();
  const auto levels = LogLevels();
  AddWord<LogFormat>(command, "--log-format", options.format, {formats.begin(), formats.end()},
                     "text or json, one object a line (default text)");
  AddWord<LogLevel>(command, "--log-level", options.level, {levels.begin(), levels.end()},
                    "debug, info, warning or error (default info)");
}

}  // namespace stemma
