// run.yaml -> RunConfig. Keys are the proto's field names, enums its lower-case words (schedule: auto, reuse, dense;
// layout: one_by_one, padded, packed; prefix_policy: s0 to s5; offload: on, off; optimizer_residency: device, host;
// split_groups: auto, on, off; shard_parameters: auto, on, off; prefix_kv: auto, hold, regather;
// reduce_gradients: auto, sweep, step; durability: rewind, replay). Sizes take units (20GB). Every problem of a file is
// reported at once, each with its key and line.
//
// Order of use: ParseRunConfig (or an empty ParsedRunConfig), flags over it, FillDefaults, Validate, ToStatus.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/descriptor.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma {

struct RunConfigProblem {
  std::string key;  // "limits.groups"
  int line = 0;     // from 1; 0: the key is not in the file
  std::string message;
};

struct ParsedRunConfig {
  v1::RunConfig config;
  std::map<std::string, int> line_of_key;
  std::vector<RunConfigProblem> problems;
};

// Returns the word that run.yaml has for an enum's value, "on" for OFFLOAD_ON; empty for the one that says nothing.
std::string RunConfigWord(const google::protobuf::EnumValueDescriptor& value);

// Returns what can be read in `config`, the rest in `problems`. A 0 is refused where the key's lowest value is more: in
// `config` it says that the key is not there.
ParsedRunConfig ParseRunConfig(std::string_view yaml);

// Reads the file and parses. Errors: the file cannot be read.
absl::StatusOr<ParsedRunConfig> ReadRunConfig(const std::string& path);

// Gives dtype its short name. Fills every field that is zero or empty and has a default (not: model,
// memory_budget_bytes, wave_suffixes, layout, threads, and what the device or the budget chooses).
void FillDefaults(v1::RunConfig& config);

// Adds a problem for every value that cannot be run.
void Validate(ParsedRunConfig& parsed);

// OK without problems; else InvalidArgument that names `source` and lists them, one a line.
absl::Status ToStatus(const std::string& source, const ParsedRunConfig& parsed);

}  // namespace stemma
