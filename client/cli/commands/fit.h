// What a model and one prompt group need of a device, and whether they fit, from the byte formulas of common alone: no
// server is asked. Pure. Tests hold it to the planner's own answers.
//
// A device of its own is taken: a server leaves a sixteenth of it to the runtime. Where several ways fit, the server
// takes the fastest by its measured rates; here only the ends are told: everything kept, and the fewest bytes of all
// ways.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/model_config.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::cli {

struct GroupLengths {
  int64_t prompt = 1024;    // P
  int64_t response = 1024;  // R of every rollout
  int64_t rollouts = 8;     // N
};

enum class FitVerdict { kUnknown, kAllKept, kRecomputed, kNo };

// One dtype with the optimizer's states in one place.
struct FitAnswer {
  std::string dtype;
  v1::OptimizerResidency residency = v1::DEVICE;
  int64_t state_bytes = 0;     // of the device, between steps
  int64_t apply_bytes = 0;     // beside them during APPLY, when no activations are there
  int64_t host_bytes = 0;      // optimizer states in host memory
  int64_t all_kept_bytes = 0;  // activations, nothing computed twice, waves as the server would like them
  int64_t least_bytes = 0;     // activations of the way that needs fewest, one rollout a wave
  int64_t usable_bytes = 0;    // of the device; 0: not asked
  FitVerdict verdict = FitVerdict::kUnknown;
};

// `device_bytes` 0: the needs only. REQUIRES: lengths of at least 1, a dtype that a server takes.
std::vector<FitAnswer> FitAnswers(const ModelConfig& model, const std::vector<std::string>& dtypes,
                                  const GroupLengths& lengths, int64_t device_bytes);

}  // namespace stemma::cli
