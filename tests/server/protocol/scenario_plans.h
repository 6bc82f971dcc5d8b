// What a scenario's lines ask for: the words of an event, requests of two groups, and plans whose numbers show which
// step they belong to.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/protocol/request_plan.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

// The number that a word is; anything else ends the test's process.
uint64_t Number(const std::string& text);

// "submit 1 a steps=2 skip" -> words {submit, 1, a}, options {steps: 2, skip: ""}.
struct Command {
  explicit Command(const std::string& line);
  bool Has(const std::string& name) const { return options.contains(name); }
  uint64_t Get(const std::string& name, uint64_t otherwise) const {
    return Has(name) ? Number(options.at(name)) : otherwise;
  }
  std::string Text(const std::string& name) const { return Has(name) ? options.at(name) : ""; }
  uint64_t Id(size_t word) const { return Number(words.at(word)); }

  std::vector<std::string> words;
  std::map<std::string, std::string> options;
};

// K = ppo_epochs steps of two groups, each with numbers of its own, so that a number of another step shows: denominator
// 8 + k, prompt-mean weights 1 / (8 + k) and 1 / (4 + k), predicted bytes 10 (k + 1). The step numbered `seed`,
// with shuffle those after it too, has nothing to run; the one numbered loss_scale_factor - 1 runs for its log-probs
// alone; ref WEIGHTS asks for the entry pass, whose row of the report
// predicts 999 bytes. Two clusters of which one is predicted to take ppo_mini_batch_size seconds in Phase B; so does
// APPLY. It was made for a budget of 500 bytes, of which it needs clip_ratio_c.
absl::StatusOr<RequestPlan> FakePlan(const TrainingRequest& request, uint32_t num_ranks);

std::shared_ptr<const TrainingRequest> MakeUpdate(const Command& command);
std::shared_ptr<const TrainingRequest> MakeLogProb(const Command& command);
std::shared_ptr<const TrainingRequest> MakeVerification(const Command& command);
v1::ExportWeightsRequest MakeExport(const Command& command);

}  // namespace stemma::server
