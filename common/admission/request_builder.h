// A request from its stream: parts in, one validated TrainingRequest out. Limits are checked before anything is kept;
// each part is checked when it comes. Problems are collected by field path and reported together at the end; from the
// first one on nothing is kept but names, which tell whether later ones are unique.
//
// Thread safety: none; one stream's parts arrive one after another.
// Errors of Add end the stream: RESOURCE_EXHAUSTED LIMIT_EXCEEDED, INVALID_ARGUMENT SHORT_STREAM (order of parts).
// Errors of Finish: INVALID_ARGUMENT INVALID_REQUEST (with field paths) or SHORT_STREAM. What only all of its groups
// together show is in the request's `refused`: INVALID_REQUEST, LIMIT_EXCEEDED, FAILED_PRECONDITION UNSUPPORTED.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/admission/group_rules.h"
#include "common/admission/training_request.h"
#include "common/model/model_config.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma {

class RequestBuilder {
 public:
  RequestBuilder(TrainingRequest::Kind kind, const v1::Limits& limits, const ModelConfig& model,
                 const RunNumbers& numbers);

  // Takes what it keeps out of `part`.
  absl::Status Add(v1::GroupPart& part);

  // Once, after the client closed its stream.
  absl::StatusOr<std::shared_ptr<const TrainingRequest>> Finish();

  // Returns what is known of a request that Add or Finish refused by its limits or rules, for whoever may know its id;
  // null: that is not what `why` says, or it has no id.
  std::shared_ptr<const TrainingRequest> Refused(const absl::Status& why) const;

  // Returns about how many bytes the kept parts take.
  uint64_t kept_bytes() const { return kept_bytes_; }

 private:
  // What is known of a group, kept or not.
  struct SeenGroup {
    std::string uid;
    int64_t prompt_tokens = 0;
    int num_rollouts = 0;
  };

  absl::Status AddPart(v1::GroupPart& part);
  void KeepOnlyNames();
  void CountBytes(const google::protobuf::Message& message, int num_rollouts, size_t uid_bytes);
  absl::Status AddHeader(v1::GroupPart& part);
  absl::Status AddGroup(v1::PromptGroup& group);
  absl::Status AddMore(v1::MoreRollouts& more);
  absl::Status AddEnd(const v1::StreamEnd& end);
  absl::Status CheckLimits(const google::protobuf::RepeatedPtrField<v1::Rollout>& rollouts, uint64_t prompt_tokens);
  void CheckRollouts(size_t group_index, const google::protobuf::RepeatedPtrField<v1::Rollout>& rollouts);
  absl::Status CheckCounts() const;
  absl::Status CheckSteps();
  absl::Status CheckUpdate();

  const v1::Limits limits_;
  const GroupLimits group_limits_;
  TrainingRequest request_;
  RolloutNeeds needs_;
  Violations violations_;
  bool has_header_ = false;
  bool has_end_ = false;
  v1::StreamEnd end_;
  uint64_t kept_bytes_ = 0, name_bytes_ = 0;
  std::vector<SeenGroup> groups_;
  // Clients choose the names: these are hashed by a seed of the process, so that none can be made to collide.
  absl::flat_hash_map<std::string, size_t> group_of_uid_;
  absl::flat_hash_set<std::string> rollout_ids_;
};

}  // namespace stemma
