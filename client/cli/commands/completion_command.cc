// stemma completion bash|zsh: prints a completion script, made from the commands themselves.
#include <iostream>
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/commands/command.h"
#include "client/cli/commands/completion.h"
#include "common/base/option_checks.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

CompletionOption OptionOf(const CLI::Option& option) {
  CompletionOption result;
  for (const std::string& name : option.get_snames()) result.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) result.names.push_back("--" + name);
  if (option.get_type_size() != 0) result.value = option.get_type_name();
  return result;
}

void AddCommands(const CLI::App& app, const std::string& path, std::vector<CompletionCommand>& commands) {
  CompletionCommand command = {.path = path, .commands = {}, .options = {}, .arguments = {}};
  for (const CLI::Option* option : app.get_options([](const CLI::Option*) { return true; })) {
    if (option->get_positional()) {
      command.arguments.push_back(option->get_type_name());
    } else {
      command.options.push_back(OptionOf(*option));
    }
  }
  const auto children = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* child : children) command.commands.push_back(child->get_name());
  commands.push_back(std::move(command));
  for (const CLI::App* child : children) {
    AddCommands(*child, path.empty() ? child->get_name() : absl::StrCat(path, " ", child->get_name()), commands);
  }
}

absl::Status RunCompletion(const CLI::App& app, const std::string& shell) {
  std::vector<CompletionCommand> commands;
  AddCommands(app, "", commands);
  ASSIGN_OR_RETURN(const std::string script, CompletionScript(shell, app.get_name(), commands));
  std::cout << script << std::flush;
  return absl::OkStatus();
}

}  // namespace

void AddCompletionCommand(CLI::App& app, Runner& run) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "Print a script that completes these commands in a shell");
  command->add_option("SHELL", *shell, "bash or zsh")
      ->required()
      ->check(OneOf({"bash", "zsh"}), "")
      ->type_name("bash|zsh");
  SetExamples(command,
              "  stemma completion bash > ~/.local/share/bash-completion/completions/stemma\n"
              "  stemma completion zsh > \"${fpath[1]}/_stemma\"");
  command->callback([&app, &run, shell] { run = [&app, shell] { return RunCompletion(app, *shell); }; });
}

}  // namespace stemma::cli
