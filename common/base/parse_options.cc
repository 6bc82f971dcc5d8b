#include "common/base/parse_options.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/nearest.h"
#include "common/base/printable.h"

namespace stemma {
namespace {

constexpr int kUsageExitCode = 2;

class HelpStyle : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0 || option->get_positional()) return "";
    // CLI11 appends the names of its checks to the placeholder.
    const std::string name = absl::StrReplaceAll(option->get_type_name(), {{":POSITIVE", ""}, {":NONNEGATIVE", ""}});
    return name.empty() ? "" : " " + name;
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    std::vector<std::string> notes;
    if (option->get_required() && !option->get_positional()) notes.emplace_back("required");
    if (!option->get_default_str().empty()) notes.push_back("default: " + option->get_default_str());
    if (!option->get_envname().empty()) notes.push_back("or in " + option->get_envname());
    if (notes.empty()) return option->get_description();
    return absl::StrCat(option->get_description(), " (", absl::StrJoin(notes, ", "), ")");
  }
};

// "stemma trace make"
std::string NameOf(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : absl::StrCat(NameOf(*parent), " ", app.get_name());
}

// The last command of those that the line named.
const CLI::App* Named(const CLI::App* app) {
  const std::vector<CLI::App*> commands = app->get_subcommands();
  return commands.empty() ? app : Named(commands.back());
}

std::vector<std::string> CommandsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> OptionsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options([](const CLI::Option* o) { return o->nonpositional(); })) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

// What `word`, which no command or option took, is answered with.
std::string UnknownWord(const CLI::App& command, const std::string& word) {
  const std::vector<std::string> commands = CommandsOf(command);
  const bool is_option = word.size() > 1 && word[0] == '-';
  const std::string kind = is_option ? "unknown option" : commands.empty() ? "unexpected argument" : "unknown command";
  std::string text = absl::StrCat(kind, " \"", word, "\"");
  const std::string name = word.substr(0, word.find('='));
  const std::string nearest = Nearest(name, is_option ? OptionsOf(command) : commands);
  if (!nearest.empty()) absl::StrAppend(&text, "; did you mean ", nearest, "?");
  return text;
}

std::string ErrorText(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = *Named(&app);
  const std::string name = NameOf(command);
  const std::string help = absl::StrCat(" (`", name, " --help` lists what there is)");
  for (const CLI::App* at = &command; at != nullptr; at = at->get_parent()) {
    // CLI11 keeps what it could not place, and would report what is missing first.
    if (const auto unknown = at->remaining(); !unknown.empty()) {
      return absl::StrCat(name, ": ", UnknownWord(*at, unknown.front()), help);
    }
  }
  const std::vector<std::string> commands = CommandsOf(command);
  if (!commands.empty() && command.get_subcommands().empty() && command.get_require_subcommand_min() > 0) {
    return absl::StrCat(name, ": say which command: ", absl::StrJoin(commands, ", "), help);
  }
  return absl::StrCat(name, ": ", std::string(error.what()), help);
}

// Returns what the line gave an empty value, as where a script's variable is not set: it would count as not given,
// which for a file, a name or a size means something else. "": nothing.
std::string EmptyValue(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options([](const CLI::Option* o) { return o->count() > 0; })) {
    const std::vector<std::string>& values = option->results();
    if (option->get_type_size() == 0 || std::find(values.begin(), values.end(), "") == values.end()) continue;
    return absl::StrCat(NameOf(app), ": ", option->get_name(), " is empty: give a value, or leave it out");
  }
  for (const CLI::App* command : app.get_subcommands()) {
    if (const std::string text = EmptyValue(*command); !text.empty()) return text;
  }
  return "";
}

}  // namespace

void SetHelpStyle(CLI::App& app) {
  const auto style = std::make_shared<HelpStyle>();
  app.formatter(style);
}

std::optional<int> ParseOptions(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // the one way in which CLI11 reports; help and version come this way too
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success))
      return app.exit(error, std::cout, std::cerr);
    std::cerr << Printable(ErrorText(app, error), "\n") << std::endl;
    return kUsageExitCode;
  }
  const std::string empty = EmptyValue(app);
  if (empty.empty()) return std::nullopt;
  std::cerr << empty << std::endl;
  return kUsageExitCode;
}

}  // namespace stemma
