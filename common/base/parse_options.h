// The command line of a program: how its help looks, and how it answers what is wrong, the same in all programs.
//
// Help: a placeholder says what an option takes (FILE, DIR, HOST:PORT, N a whole number, X a number, SECONDS, BYTES
// such as 20GB, or the words themselves, a|b); what is required, the default and the variable stand behind the
// description. Errors: one line on stderr that begins with the command, names the option or word, and the nearest one
// that exists; exit code 2.
#pragma once

#include <optional>

namespace CLI {
class App;
}

namespace stemma {

// Call it before any subcommand is added: they inherit the style.
void SetHelpStyle(CLI::App& app);

// Nothing: go on. Else the program's exit code, 0 after --help and --version; all is said.
std::optional<int> ParseOptions(CLI::App& app, int argc, char** argv);

}  // namespace stemma
