// What computing each shared prompt once would save, from lengths alone. Pure; client/python/stemma/_bound.py counts
// the same, and a test compares the two.
//
// A trajectory computed in full runs P - 1 + R rows, a group with reuse P - 1 once and R for each rollout; the last
// response token predicts nothing and is not run, nor is a rollout without a response. FLOPs: common/cost/flops.h. A
// bound: attention of suffixes to the prefix is not saved, and waves and copies take their part, so time is saved at
// most in the ratio of FLOPs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/output/records.h"
#include "common/model/model_config.h"
#include "stemma/v1/training.pb.h"

namespace stemma::cli {

// One prompt and the responses to it.
struct LengthGroup {
  int64_t prompt = 0;  // P, at least 1
  std::vector<int64_t> responses;
};

// Returns the lengths of a trace's group. Errors: InvalidArgument - its prompt is empty; names the group.
absl::StatusOr<LengthGroup> LengthsOf(const v1::PromptGroup& group);

class ReuseBound {
 public:
  // Counts FLOPs too where a model is given.
  explicit ReuseBound(std::optional<ModelConfig> model = std::nullopt) : model_(std::move(model)) {}

  void Add(const LengthGroup& group);

  int64_t groups() const { return groups_; }
  int64_t rollouts() const { return rollouts_; }
  int64_t rollouts_run() const { return rollouts_run_; }
  int64_t tokens_dense() const { return tokens_dense_; }
  int64_t tokens_reuse() const { return tokens_reuse_; }
  int64_t prefix_rows_dense() const { return prefix_rows_dense_; }
  double flops_dense() const { return flops_dense_; }
  double flops_reuse() const { return flops_reuse_; }

  // `model_name`: as the user gave it.
  Record ToRecord(const std::string& model_name) const;

 private:
  std::optional<ModelConfig> model_;
  int64_t groups_ = 0, rollouts_ = 0, rollouts_run_ = 0;
  int64_t tokens_dense_ = 0, tokens_reuse_ = 0;
  int64_t prefix_rows_dense_ = 0;  // of tokens_dense_, those before the last prompt token
  double flops_dense_ = 0, flops_reuse_ = 0;
};

// The groups of a trace, or of a file with one JSON object a line:
//   {"group": "q1", "prompt": 512, "response": 128}          one rollout
//   {"group": "q1", "prompt": 512, "responses": [128, 90]}   several; alone on their prompt, "group" may be absent
// prompt and responses are lengths or lists of tokens. Lines of one group share its prompt, which the first must hold.
// Other keys are passed over. Errors: exit code 2, naming file, line and field.
absl::StatusOr<std::vector<LengthGroup>> ReadLengths(const std::string& path);

}  // namespace stemma::cli
