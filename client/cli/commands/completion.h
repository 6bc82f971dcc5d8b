// Completion scripts for shells, written from the commands and options that the program has. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace stemma::cli {

struct CompletionOption {
  std::vector<std::string> names;  // "-o", "--output"
  std::string value;               // its placeholder: FILE, DIR, a|b|c, ...; "": a flag
};

struct CompletionCommand {
  std::string path;  // "trace make"; "": the program itself
  std::vector<std::string> commands;
  std::vector<CompletionOption> options;
  std::vector<std::string> arguments;  // placeholders, in order
};

// Completes commands, options, the words of options that take some, and files. Errors: InvalidArgument - a shell that
// is neither bash nor zsh.
absl::StatusOr<std::string> CompletionScript(std::string_view shell, const std::string& program,
                                             const std::vector<CompletionCommand>& commands);

}  // namespace stemma::cli
