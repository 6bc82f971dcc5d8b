#include "common/admission/request_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/admission/header_rules.h"
#include "common/admission/normalization.h"
#include "common/error.h"
#include "common/status_macros.h"

namespace stemma {
namespace {

absl::Status ShortStream(const std::string& message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "SHORT_STREAM",
                   absl::StrCat(message, "; nothing happened, the request_id is free"));
}

absl::Status LimitExceeded(const char* what, uint64_t limit) {
  return MakeError(
      absl::StatusCode::kResourceExhausted, "LIMIT_EXCEEDED",
      absl::StrCat("the request has more than ", limit, " ", what, " (limits.", what, "): send smaller ones"));
}

}  // namespace

RequestBuilder::RequestBuilder(TrainingRequest::Kind kind, const v1::Limits& limits, const ModelConfig& model,
                               const RunNumbers& numbers)
    : limits_(limits),
      group_limits_{.vocab_size = model.vocab_size,
                    .max_positions = model.max_positions,
                    .string_bytes = limits.string_bytes(),
                    .numbers = numbers} {
  request_.kind = kind;
}

absl::Status RequestBuilder::Add(v1::GroupPart& part) {
  if (has_end_) return ShortStream("a part follows `end`");
  switch (part.part_case()) {
    case v1::GroupPart::kUpdate:
    case v1::GroupPart::kLogProb:
      return AddHeader(part);
    case v1::GroupPart::kGroup:
      return AddGroup(*part.mutable_group());
    case v1::GroupPart::kMore:
      return AddMore(*part.mutable_more());
    case v1::GroupPart::kEnd:
      return AddEnd(part.end());
    case v1::GroupPart::PART_NOT_SET:
      return ShortStream("a part is empty, or of a kind that this server does not know");
  }
  return ShortStream("a part is of a kind that this server does not know");
}

absl::Status RequestBuilder::AddHeader(v1::GroupPart& part) {
  if (has_header_) return ShortStream("a second header");
  const bool update = request_.kind == TrainingRequest::Kind::kUpdate;
  if (update != part.has_update()) {
    return ShortStream(absl::StrCat("the header must be `", update ? "update" : "log_prob", "`"));
  }
  has_header_ = true;
  if (update) {
    request_.update = std::move(*part.mutable_update());
    needs_ = CheckUpdateHeader(request_.update, group_limits_.numbers, violations_);
  } else {
    request_.log_prob = std::move(*part.mutable_log_prob());
    CheckLogProbHeader(request_.log_prob, group_limits_.numbers, violations_);
  }
  digest_ = std::make_unique<PayloadDigest>(request_.update);
  return absl::OkStatus();
}

absl::Status RequestBuilder::CheckLimits(const google::protobuf::RepeatedPtrField<v1::Rollout>& rollouts,
                                         uint64_t prompt_tokens) {
  request_.num_rollouts += rollouts.size();
  request_.num_tokens += prompt_tokens;
  for (const v1::Rollout& rollout : rollouts) request_.num_tokens += rollout.response_tokens().size() / sizeof(int32_t);
  if (request_.num_rollouts > limits_.rollouts()) return LimitExceeded("rollouts", limits_.rollouts());
  if (request_.num_tokens > limits_.tokens()) return LimitExceeded("tokens", limits_.tokens());
  return absl::OkStatus();
}

absl::Status RequestBuilder::AddGroup(v1::PromptGroup& group) {
  if (!has_header_) return ShortStream("a group comes before the header");
  if (request_.groups.size() >= limits_.groups()) return LimitExceeded("groups", limits_.groups());
  RETURN_IF_ERROR(CheckLimits(group.rollouts(), group.prompt_tokens().size() / sizeof(int32_t)));
  const size_t index = request_.groups.size();
  const std::string path = absl::StrCat("groups[", index, "]");
  CheckGroup(path, group, group_limits_, violations_);
  const auto [same, added] = group_of_uid_.emplace(group.uid(), index);
  if (added) {
    digest_->AddGroup(group);
  } else {
    violations_.Add(absl::StrCat(path, ".uid"), absl::StrCat("is the uid of groups[", same->second, "] too"),
                    group.uid());
  }
  request_.bytes += group.ByteSizeLong();
  request_.groups.push_back(std::move(group));
  CheckRollouts(index, 0, request_.groups.back().rollouts());
  return absl::OkStatus();
}

absl::Status RequestBuilder::AddMore(v1::MoreRollouts& more) {
  const auto found = group_of_uid_.find(more.uid());
  if (found == group_of_uid_.end()) {
    return ShortStream(absl::StrCat("`more` for uid \"", more.uid().substr(0, 80), "\", of which no group was sent"));
  }
  RETURN_IF_ERROR(CheckLimits(more.rollouts(), 0));
  digest_->AddRollouts(more.uid(), more.rollouts());
  request_.bytes += more.ByteSizeLong();
  v1::PromptGroup& group = request_.groups[found->second];
  const int first = group.rollouts_size();
  CheckRollouts(found->second, first, more.rollouts());
  for (v1::Rollout& rollout : *more.mutable_rollouts()) *group.add_rollouts() = std::move(rollout);
  return absl::OkStatus();
}

void RequestBuilder::CheckRollouts(size_t group_index, int first,
                                   const google::protobuf::RepeatedPtrField<v1::Rollout>& rollouts) {
  const v1::PromptGroup& group = request_.groups[group_index];
  const int64_t prompt_tokens = group.prompt_tokens().size() / sizeof(int32_t);
  for (int i = 0; i < rollouts.size(); ++i) {
    const std::string path = absl::StrCat("groups[", group_index, "].rollouts[", first + i, "]");
    CheckRollout({.path = path, .uid = group.uid(), .prompt_tokens = prompt_tokens}, rollouts[i], needs_, group_limits_,
                 violations_);
    if (!rollout_ids_.insert(rollouts[i].rollout_id()).second) {
      violations_.Add(path + ".rollout_id",
                      absl::StrCat("\"", rollouts[i].rollout_id().substr(0, 80), "\" was sent before"), group.uid());
    }
  }
}

absl::Status RequestBuilder::AddEnd(const v1::StreamEnd& end) {
  if (!has_header_) return ShortStream("`end` comes before the header");
  has_end_ = true;
  end_ = end;
  return absl::OkStatus();
}

absl::Status RequestBuilder::CheckCounts() const {
  if (!has_header_) return ShortStream("the stream has no header");
  if (!has_end_) return ShortStream("the stream was cut: it has no `end`");
  const uint64_t groups = request_.groups.size();
  if (end_.num_groups() != groups || end_.num_rollouts() != request_.num_rollouts) {
    return ShortStream(absl::StrCat("`end` says ", end_.num_groups(), " groups and ", end_.num_rollouts(),
                                    " rollouts, ", groups, " and ", request_.num_rollouts, " came"));
  }
  if (request_.update.has_num_groups() && request_.update.num_groups() != groups) {
    return ShortStream(absl::StrCat("the header says ", request_.update.num_groups(), " groups, ", groups, " came"));
  }
  return absl::OkStatus();
}

absl::Status RequestBuilder::CheckSteps() {
  const v1::UpdateHeader& header = request_.update;
  const uint64_t groups = request_.groups.size();
  const uint64_t mini_batch = header.has_ppo_mini_batch_size() ? header.ppo_mini_batch_size() : groups;
  const uint64_t steps_per_epoch = groups / mini_batch + (groups % mini_batch != 0);
  const uint64_t epochs = header.has_ppo_epochs() ? header.ppo_epochs() : 1;
  if (epochs > limits_.steps() || steps_per_epoch * epochs > limits_.steps()) {
    return LimitExceeded("steps", limits_.steps());
  }
  if (steps_per_epoch * epochs > 1 && header.old().from() == v1::LogProbSource::ON_POLICY) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "UNSUPPORTED",
        absl::StrCat("update.old is ON_POLICY, which is right for one optimizer step only; this request has ",
                     steps_per_epoch * epochs, ": use WEIGHTS"),
        {.field = "update.old.from"});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const TrainingRequest>> RequestBuilder::Finish() {
  RETURN_IF_ERROR(CheckCounts());
  if (request_.groups.empty()) violations_.Add("groups", "is empty: a request has at least one group");
  for (size_t i = 0; i < request_.groups.size(); ++i) {
    if (request_.groups[i].rollouts().empty()) {
      violations_.Add(absl::StrCat("groups[", i, "].rollouts"), "is empty: a group has at least one rollout",
                      request_.groups[i].uid());
    }
  }
  if (!violations_.empty()) return violations_.ToStatus();
  if (request_.kind == TrainingRequest::Kind::kUpdate) RETURN_IF_ERROR(CheckSteps());
  request_.digest = digest_->FinishHex();  // of what was sent: before rewards become advantages
  if (request_.kind == TrainingRequest::Kind::kUpdate) {
    RETURN_IF_ERROR(FillAdvantages(request_.update.loss(), group_limits_.numbers, request_.groups));
  }
  return std::make_shared<const TrainingRequest>(std::move(request_));
}

}  // namespace stemma
