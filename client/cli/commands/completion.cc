#include "client/cli/commands/completion.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace stemma::cli {
namespace {

// Both shells call the two tables; FILE and DIR in a list stand for what is on the disk.
constexpr char kBash[] = R"sh(# bash completion of @: eval "$(@ completion bash)"
_@() {
  local word current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" trail="" found i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${COMP_WORDS[i]}"
    case " $(_@_commands "$trail") " in *" $word "*) trail="${trail:+$trail }$word" ;; esac
  done
  found="$(_@_values "$trail" "$previous")"
  if [ -z "$found" ]; then
    case "$current" in
      -*) found="$(_@_options "$trail")" ;;
      *) found="$(_@_commands "$trail")"; found="${found:-$(_@_arguments "$trail")}" ;;
    esac
  fi
  case "$found" in
    FILE) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    DIR) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$found" -- "$current") ;;
  esac
}
complete -F _@ @
)sh";

constexpr char kZsh[] = R"sh(#compdef @
# zsh completion of @: @ completion zsh > "${fpath[1]}/_@"
_@() {
  local word trail="" found i
  local -a known
  for ((i = 2; i < CURRENT; i++)); do
    word="${words[i]}"
    case " $(_@_commands "$trail") " in *" $word "*) trail="${trail:+$trail }$word" ;; esac
  done
  found="$(_@_values "$trail" "${words[CURRENT-1]}")"
  if [[ -z "$found" ]]; then
    if [[ "${words[CURRENT]}" == -* ]]; then
      found="$(_@_options "$trail")"
    else
      found="$(_@_commands "$trail")"
      found="${found:-$(_@_arguments "$trail")}"
    fi
  fi
  case "$found" in
    FILE) _files ;;
    DIR) _files -/ ;;
    *) known=(${=found}); compadd -- $known ;;
  esac
}
if [[ "$funcstack[1]" == _@ ]]; then _@ "$@"; else compdef _@ @; fi
)sh";

bool IsWordList(const std::string& value) { return value.find('|') != std::string::npos; }

// What a value is completed with; "" where nothing is known. MODEL: a file, a directory, or a size.
std::string Words(const std::string& value) {
  if (value == "FILE" || value == "MODEL") return "FILE";
  if (value == "DIR") return "DIR";
  return IsWordList(value) ? absl::StrReplaceAll(value, {{"|", " "}}) : "";
}

std::string Case(const std::string& pattern, const std::string& words) {
  return absl::StrCat("    \"", pattern, "\") echo \"", words, "\" ;;\n");
}

std::string Function(const std::string& name, const std::string& argument, const std::string& cases) {
  return absl::StrCat(name, "() {\n  case \"", argument, "\" in\n", cases, "  esac\n}\n");
}

std::string Tables(const std::string& program, const std::vector<CompletionCommand>& commands) {
  std::string names, options, values, arguments;
  for (const CompletionCommand& command : commands) {
    names += Case(command.path, absl::StrJoin(command.commands, " "));
    std::vector<std::string> all;
    for (const CompletionOption& option : command.options) {
      all.insert(all.end(), option.names.begin(), option.names.end());
      if (option.value.empty()) continue;
      // A value that is not known completes to nothing, never to an option.
      for (const std::string& name : option.names) {
        const std::string words = Words(option.value);
        values += Case(absl::StrCat(command.path, " ", name), words.empty() ? " " : words);
      }
    }
    options += Case(command.path, absl::StrJoin(all, " "));
    arguments += Case(command.path, command.arguments.empty() ? "" : Words(command.arguments.front()));
  }
  return absl::StrCat(Function(absl::StrCat("_", program, "_commands"), "$1", names),
                      Function(absl::StrCat("_", program, "_options"), "$1", options),
                      Function(absl::StrCat("_", program, "_arguments"), "$1", arguments),
                      Function(absl::StrCat("_", program, "_values"), "$1 $2", values));
}

}  // namespace

absl::StatusOr<std::string> CompletionScript(std::string_view shell, const std::string& program,
                                             const std::vector<CompletionCommand>& commands) {
  const std::string tables = Tables(program, commands);
  const auto named = [&](const char* text) {
    return absl::StrReplaceAll(text, {{"\"$@\"", "\"$@\""}, {"@", program}});
  };
  if (shell == "bash") return absl::StrCat(tables, named(kBash));
  if (shell != "zsh") {
    return absl::InvalidArgumentError(
        absl::StrCat("no completion for the shell \"", std::string(shell), "\": bash or zsh"));
  }
  // `#compdef` must be the first line.
  const std::string body = named(kZsh);
  const size_t end = body.find('\n') + 1;
  return absl::StrCat(body.substr(0, end), tables, body.substr(end));
}

}  // namespace stemma::cli
