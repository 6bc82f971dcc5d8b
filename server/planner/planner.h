// The planner: groups -> mini-batches -> ranks -> clusters -> waves, reuse or dense per group, FLOPs and bytes. Pure:
// sizes in, a plan out; no clock, no I/O. The same inputs give the same plan, bit for bit (a plan is frozen when its
// request is accepted).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "server/planner/cost_model.h"
#include "server/planner/stop_check.h"
#include "stemma/v1/plan.pb.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::server {

struct PlannerRollout {
  int64_t response_tokens = 0;
  bool run = true;  // false: nothing to compute (empty, fully masked, zero advantage without other terms)
};

struct PlannerGroup {
  std::string uid;
  int64_t prompt_tokens = 0;
  std::vector<PlannerRollout> rollouts;
};

struct PlannerRequest {
  std::vector<PlannerGroup> groups;
  int64_t mini_batch_groups = 0;  // 0: all
  int64_t epochs = 1;
  bool shuffle = false;
  uint64_t seed = 0;
  std::string payload_digest;     // with seed and epoch, decides the order of a shuffle
  int log_prob_passes = 0;        // old or ref from WEIGHTS: how many weights they name
  bool reads_checkpoint = false;  // one of these, or what ComputeLogProb names: the passes run beside its weights
  bool forward_only = false;      // ComputeLogProb: one step, no backward
  bool beside_gradients = false;  // VerifyGroup: the device holds another run's gradients
  v1::Schedule schedule = v1::AUTO;
  bool whole_rollouts = false;  // the loss takes its gradient of whole responses (common/cost/byte_shape.h)
};

struct PlannerModel {
  ModelConfig config;
  v1::RunConfig run;  // divided (server/planner/memory_division.h; a host of 0 is no limit), and what is forced
  Rates rates = DefaultRates(RunDtype::kFp32, 1, "cpu");

  int32_t dp_ranks() const { return std::max(static_cast<int32_t>(run.mesh().dp()), 1); }
};

// Without shuffle every epoch runs the same steps, and they are held once: `plan.steps` are those of one epoch, and
// `repeats` says how many epochs run them.
struct PlanResult {
  v1::Plan plan;
  uint32_t repeats = 1;
  v1::PlanReport report;
  std::vector<std::vector<PhaseWork>> work;  // by plan.steps and copy of the model
};

// Errors: ResourceExhausted GROUP_TOO_LARGE - a group does not fit the budget (or the host's memory) in any way that
// the run configuration allows, alone and with one suffix per wave: the message names its uid, the fewest bytes that it
// needs, the budget, and what was forced. Cancelled - `stop` said so.
absl::StatusOr<PlanResult> MakePlan(const PlannerModel& model, const PlannerRequest& request,
                                    const StopCheck& stop = {});

}  // namespace stemma::server
