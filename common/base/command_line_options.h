// What the command lines of all programs share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/base/logging.h"

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
// A link, as a server takes it from a worker: 0.1 ps to 1 ms a byte, at most a minute a message.
inline constexpr NumberRange kLinkBytesPerS = {.min = 1e3, .max = 1e13};
inline constexpr NumberRange kLinkLatencyUs = {.min = 0, .max = 6e7};
inline constexpr NumberRange kSharedCores = {.min = 1e-3, .max = 1e6};

// An option that takes a finite number: nan, inf and what overflows a double are refused, which CLI11's own checks let
// pass. Every option of type double is made by this.
CLI::Option* AddNumber(CLI::App* command, const std::string& name, double& value, const std::string& help,
                       const NumberRange& range = kAnyNumber);

// An option that takes a number of bytes as ParseByteSize does, 20GB or 1.5TB; what is no number of bytes, or negative,
// is refused, which CLI11's own reading lets wrap.
CLI::Option* AddBytes(CLI::App* command, const std::string& name, uint64_t& bytes, const std::string& help);

// Adds an option that takes one of these words and nothing else; `store` gets the index of the one that was given.
CLI::Option* AddChoice(CLI::App* command, const std::string& name, const std::vector<std::string>& words,
                       const std::function<void(size_t index)>& store, const std::string& help);

// Adds the same with what each word stands for.
template <typename Value>
CLI::Option* AddWord(CLI::App* command, const std::string& name, Value& value,
                     const std::vector<std::pair<std::string, Value>>& words, const std::string& help) {
  std::vector<std::string> known;
  for (const auto& [word, meaning] : words) known.push_back(word);
  return AddChoice(
      command, name, known, [&value, words](size_t index) { value = words[index].second; }, help);
}

// Adds --log-format and --log-level.
void AddLogOptions(CLI::App* command, LogOptions& options);

}  // namespace stemma
