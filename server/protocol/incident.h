// What the server knows of a generation that was lost, in the moment in which it ends. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::server {

struct CoordinatorParts;

struct Incident {
  struct Rank {
    std::string incarnation, host;
    uint32_t pid = 0;
    std::string device;
    bool ready = false;     // it had the model
    std::string phase;      // that it said last
    uint64_t progress = 0;  // its counter then
    absl::Duration silent_for;
    bool answered = false;  // what the running job waits for
  };
  // What ran.
  struct Job {
    std::string id;
    std::string what;      // "PREPARE of step 3 of request a (attempt 1)"
    bool decided = false;  // the step is carried out, whoever was lost in it
    std::optional<v1::PlanReport> plan = {};
  };

  absl::Time at;
  uint64_t epoch = 0, generation = 0;
  std::string reason;
  bool served = false;  // all ranks had the model
  std::string lineage;
  uint64_t step = 0, weights_step = 0;  // the lineage's, and the one that the workers had reached
  uint64_t open_requests = 0;
  std::optional<Job> job = {};
  std::vector<Rank> ranks;
};

// REQUIRES: a generation has begun.
Incident MakeIncident(const CoordinatorParts& parts, const std::string& reason);

// Everything but the plan, as JSON for a person.
std::string IncidentText(const Incident& incident);

}  // namespace stemma::server
