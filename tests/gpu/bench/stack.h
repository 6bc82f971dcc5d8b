// Stack: a model with as many layers as are asked for, and groups computed on it as a way says.
//
// Weights are drawn on the device; the file that the engine loads is a sparse one of zeros. Optimizer states are let go
// after loading unless they are asked for: a stack makes no step then, and activations have their room. Times are the
// device's, of Phases A, B and C; what a server, a client and APPLY take is not in them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "tests/gpu/bench/bench_run.h"
#include "tests/gpu/bench/shapes.h"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

struct StackOptions {
  ModelConfig config;  // with the layers that it has
  int64_t host_tape_bytes = 1 << 20;
  v1::OptimizerResidency residency = v1::DEVICE;
  bool keeps_states = false;
};

// How a group is computed.
struct GroupWay {
  bool dense = false;
  int64_t wave_suffixes = 1;
  v1::TapePolicy prefix = v1::S0, suffix = v1::S0;
  int64_t block_rows = 0;
  bool offload = false;
  int64_t headroom_bytes = 0;
};

struct GroupRun {
  double seconds = 0;       // of the phases
  double wall_seconds = 0;  // of Prepare, by the host
  internal::v1::Vote vote;
  std::array<int64_t, 3> planned_bytes{};  // of Phases A, B and C, by the planner's formulas
};

// The most layers, up to the model's, of which state and one dense trajectory of so many tokens fit the device.
int64_t LayersThatFit(const BenchRun& run, const ModelConfig& config, int64_t trajectory_tokens);

class Stack {
 public:
  // Errors: ResourceExhausted - it does not fit.
  static absl::StatusOr<std::unique_ptr<Stack>> Create(const BenchRun& run, const StackOptions& options);

  // Errors: ResourceExhausted - the group does not fit.
  absl::StatusOr<GroupRun> Run(const GroupSize& size, const GroupWay& way);
  // Makes the update of the last Run; returns its seconds.
  absl::StatusOr<double> Apply(const GroupRun& last);
  const ModelConfig& config() const { return config_; }
  bool is_on_host() const { return is_on_host_; }

 private:
  Stack(ModelConfig config, bool is_on_host) : config_(std::move(config)), is_on_host_(is_on_host) {}
  void Force(v1::StepPlan& step) const;
  std::array<int64_t, 3> PlannedBytes(const TrainingRequest& request) const;

  const ModelConfig config_;
  const bool is_on_host_;
  v1::RunConfig run_;
  std::unique_ptr<InProcess> engine_;
  GroupWay way_;
};

}  // namespace stemma::testing
