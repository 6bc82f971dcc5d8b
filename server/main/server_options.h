// The command line of stemma-server, and run.yaml under it: everything the process is told from outside.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/address.h"
#include "common/base/logging.h"
#include "common/base/tls_files.h"
#include "common/model/model_directory.h"
#include "server/main/data_directory.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::server {

inline constexpr char kServerProgram[] = "stemma-server";

struct ServerMainOptions {
  LogOptions log;
  v1::RunConfig config;  // file, flags over it, defaults; checked
  ModelConfig model;
  HostPort listen, worker_listen, ops_listen;
  std::optional<HostPort> metrics_listen;
  std::string worker_secret;
  TlsFiles tls;  // of clients and workers; checked
  bool reflection = false;
  std::optional<DataDirectory> data;  // held; none with check_config
  std::string ready_file;             // empty: none
  std::string resume;                 // auto, none, or a checkpoint's name: with what a new journal begins
  absl::Duration worker_lost_after = absl::Seconds(10);
  absl::Duration worker_stalled_after = absl::Minutes(5);
  absl::Duration drain_within;
  bool check_config = false;
  bool die_with_parent = false;
};

// Reads the command line, the file and the model directory's headers. Every problem of all of them is reported at once
// on stderr. Returns false and sets `exit_code` when the process is to end: 0 after --help and --version, 2 for
// problems.
bool ReadServerOptions(int argc, char** argv, ServerMainOptions& options, int& exit_code);

}  // namespace stemma::server
