// A stream of parts that is good as it stands: each test breaks one thing of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/admission/run_numbers.h"
#include "common/admission/training_request.h"
#include "common/model/model_config.h"
#include "stemma/v1/training.pb.h"

namespace stemma {

inline constexpr int64_t kVocab = 100;
inline constexpr int64_t kPositions = 10;

ModelConfig Model();
v1::Limits DefaultLimits();
v1::UpdateHeader GoodHeader();
v1::Rollout GoodRollout(const std::string& id);
v1::PromptGroup GoodGroup(const std::string& uid);

// Two groups of two rollouts under a good header: each test breaks one thing of it.
struct Stream {
  TrainingRequest::Kind kind = TrainingRequest::Kind::kUpdate;  // or kVerify
  v1::UpdateHeader header = GoodHeader();
  std::vector<v1::PromptGroup> groups = {GoodGroup("a"), GoodGroup("b")};
  uint64_t end_groups = 2, end_rollouts = 4;
  bool has_end = true;
  v1::Limits limits = DefaultLimits();
  RunNumbers numbers = {};
  int64_t positions = kPositions;

  v1::Rollout& rollout() { return *groups[1].mutable_rollouts(1); }
};

absl::StatusOr<std::shared_ptr<const TrainingRequest>> Build(Stream stream);

}  // namespace stemma
