#include "client/cli/calls/shared_options.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "CLI/CLI.hpp"
#include "common/base/tls_options.h"

namespace stemma::cli {
namespace {

constexpr std::pair<const char*, const char*> kTlsVariables[] = {
    {kTlsCertOption, "STEMMA_TLS_CERT"}, {kTlsKeyOption, "STEMMA_TLS_KEY"}, {kTlsCaOption, "STEMMA_TLS_CA"}};

bool IsSet(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

bool TerminalTakesEscapes(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

}  // namespace

void AddServerOptions(CLI::App* command, ConnectionOptions* options, bool required) {
  auto* server = command->add_option("--server", options->address, "Address of the server")->type_name("HOST:PORT");
  // Where a server is optional, a variable left in the environment must not change what the command does.
  if (required) server->required()->envname("STEMMA_SERVER");
  AddClientTlsOptions(command, options->tls);
  for (const auto& [option, variable] : kTlsVariables) command->get_option(option)->envname(variable);
  AddNumber(command, "--connect-timeout", options->connect_timeout_s, "Longest wait for a connection", kTimeoutRange)
      ->type_name("SECONDS")
      ->capture_default_str();
  AddNumber(command, "--timeout", options->timeout_s, "Longest wait for an answer that needs no work", kTimeoutRange)
      ->type_name("SECONDS")
      ->capture_default_str();
}

void AddOutputOption(CLI::App* command, OutputOptions* options) {
  options->bold_headers = TerminalTakesEscapes(STDOUT_FILENO) && !IsSet("NO_COLOR");
  AddWord<OutputFormat>(command, "-o,--output", options->format,
                        {{"table", OutputFormat::kTable}, {"json", OutputFormat::kJson}},
                        "What to print; json: one object a line")
      ->type_name("table|json")
      ->default_str("table");
}

void SetExamples(CLI::App* command, const std::string& examples) { command->footer("Examples:\n" + examples); }

bool StderrIsTerminal() { return TerminalTakesEscapes(STDERR_FILENO); }

std::string TemporaryRoot() {
  const char* named = std::getenv("TMPDIR");
  return named != nullptr && *named != '\0' ? named : "/tmp";
}

}  // namespace stemma::cli
