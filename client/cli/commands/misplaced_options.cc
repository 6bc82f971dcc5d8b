#include "client/cli/commands/misplaced_options.h"

#include <optional>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace stemma::cli {
namespace {

std::vector<const CLI::App*> CommandsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

const CLI::App* FindCommand(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : CommandsOf(app)) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

// A command by its words, "stemma checkpoint list".
struct Named {
  const CLI::App* command;
  std::string words;
};

// Returns the command that the words from `begin` on name, whatever stands between them.
Named NamedBy(const std::vector<std::string>& arguments, size_t begin, Named at) {
  for (size_t i = begin; i < arguments.size(); ++i) {
    const CLI::App* const command = FindCommand(*at.command, arguments[i]);
    if (command != nullptr) at = {command, absl::StrCat(at.words, " ", arguments[i])};
  }
  return at;
}

// Returns the first command below `at` that takes the option.
std::optional<Named> TakerOf(const std::string& option, const Named& at) {
  if (at.command->get_option_no_throw(option) != nullptr) return at;
  for (const CLI::App* command : CommandsOf(*at.command)) {
    const Named below = {command, absl::StrCat(at.words, " ", command->get_name())};
    if (std::optional<Named> taker = TakerOf(option, below)) return taker;
  }
  return std::nullopt;
}

}  // namespace

std::string MisplacedOption(const CLI::App& app, const std::vector<std::string>& arguments) {
  Named at = {&app, app.get_name()};
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!absl::StartsWith(arguments[i], "-")) {
      const CLI::App* const command = FindCommand(*at.command, arguments[i]);
      if (command == nullptr) return "";
      at = {command, absl::StrCat(at.words, " ", arguments[i])};
      continue;
    }
    const std::string option = arguments[i].substr(0, arguments[i].find('='));
    if (CommandsOf(*at.command).empty() || at.command->get_option_no_throw(option) != nullptr) return "";
    const std::optional<Named> taker = TakerOf(option, NamedBy(arguments, i + 1, at));
    if (!taker) return "";
    const std::string type = taker->command->get_option_no_throw(option)->get_type_name();
    return absl::StrCat(at.words, ": options stand behind the command: `", taker->words, " ", option,
                        type.empty() ? "" : " ", type, "`");
  }
  return "";
}

}  // namespace stemma::cli
