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

// --server ADDR (where required: or STEMMA_SERVER), --tls-ca and the like (or STEMMA_TLS_CA), --connect-timeout,
// --timeout.
void AddServerOptions(CLI::App* command, ConnectionOptions* options, bool required = true);

// -o table|json. Headers are bold on a terminal unless NO_COLOR is set.
void AddOutputOption(CLI::App* command, OutputOptions* options);

// The EXAMPLES part of a command's help.
void SetExamples(CLI::App* command, const std::string& examples);

// Progress is drawn on a terminal only.
bool StderrIsTerminal();

// The directory for temporary files: TMPDIR, or /tmp. Where it is not there, making a file in it says so.
std::string TemporaryRoot();

}  // namespace stemma::cli
