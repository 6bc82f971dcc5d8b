// Options that several commands have, and what the terminal can show.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/calls/connection.h"
#include "client/cli/output/records.h"
#include "common/base/command_line_options.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace stemma::cli {

// Seconds of a timeout: calls count in milliseconds.
inline constexpr NumberRange kTimeoutRange = {.min = 1e-3, .max = 1e9};

// --server ADDR (where required: or STEMMA_SERVER), --connect-timeout, --timeout.
void AddServerOptions(CLI::App* command, ConnectionOptions* options, bool required = true);

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

// -o table|json. Headers are bold on a terminal unless NO_COLOR is set.
void AddOutputOption(CLI::App* command, OutputOptions* options);

// The EXAMPLES part of a command's help.
void SetExamples(CLI::App* command, const std::string& examples);

// Progress is drawn on a terminal only.
bool StderrIsTerminal();

// The directory for temporary files: TMPDIR, or the system's.
std::string TemporaryRoot();

}  // namespace stemma::cli
