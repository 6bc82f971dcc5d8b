// Writes a synthetic trace; with a server, old and ref log-probs are those of its model (plus noise).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/cli/calls/connection.h"
#include "client/cli/trace/synthetic_trace.h"

namespace stemma::cli {

struct TraceMakeOptions {
  std::string path;
  SyntheticTraceOptions synthetic;
  std::string rollouts = "fixed:8";
  std::string prompt_tokens = "fixed:128";
  std::string response_tokens = "fixed:32";
  ConnectionOptions server;  // no address: none
  bool base64 = false;
  bool progress = false;
};

absl::Status MakeTrace(TraceMakeOptions options);

}  // namespace stemma::cli
