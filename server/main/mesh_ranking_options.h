// The command line of `stemma-server rank-meshes`, which `stemma mesh` starts: it serves nothing, opens no port,
// answers on stdout and ends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/model_config.h"
#include "server/planner/published_devices.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::server {

inline constexpr char kRankMeshes[] = "rank-meshes";

struct MeshRankingOptions {
  v1::RunConfig config;  // file, flags over it, defaults; checked
  ModelConfig model;
  std::string trace;
  uint32_t ranks = 1;
  uint32_t requests = 8;  // the first ones of the trace, at most
  std::string device = "cpu";
  const PublishedDevice* published = nullptr;  // of that name; cpu: none
  uint64_t device_bytes = 0;                   // of each rank; 0: what the device has
  double link_bytes_per_s = 0;                 // between ranks; 0: the default rates
  double link_latency_us = -1;                 // below 0: the default rates
};

// Reads the command line, run.yaml and the model's config.json. What they hold that is wrong is added to `problems`.
// `exit_code` is set, and false returned, when the process is to end: after --help, or where the line cannot be read.
bool ReadMeshRankingOptions(int argc, char** argv, MeshRankingOptions& options, std::vector<std::string>& problems,
                            int& exit_code);

}  // namespace stemma::server
