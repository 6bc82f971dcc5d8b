#include "common/admission/request_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/admission/header_rules.h"
#include "common/admission/known_fields.h"
#include "common/admission/mini_batches.h"
#include "common/admission/normalization.h"
#include "common/base/digest.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace stemma {
namespace {

constexpr uint64_t kPlannedRolloutsPerGroup = 16;  // of limits.planned_groups
constexpr size_t kHeaderBytesMax = 64 << 10;
constexpr uint64_t kObjectBytes = 256;  // of a group's or rollout's message object, about
constexpr uint64_t kNameBytes = 96;     // of a rollout_id's place in the set of those seen, about

absl::Status ShortStream(const std::string& message) {
  return MakeError(Reason::kShortStream, absl::StrCat(message, "; nothing happened, the request_id is free"));
}

absl::Status LimitExceeded(const char* field, const char* what, uint64_t limit) {
  return MakeError(Reason::kLimitExceeded, absl::StrCat("the request has more than ", limit, " ", what, " (limits.",
                                                        field, "): send smaller ones"));
}

absl::Status InvalidHeader(const std::string& field, size_t bytes) {
  Violations violations;
  violations.Add(field, absl::StrCat("has ", bytes, " bytes, a header has at most ", kHeaderBytesMax));
  return violations.ToStatus();
}

absl::Status LimitExceeded(const char* field, uint64_t limit) { return LimitExceeded(field, field, limit); }

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
  RETURN_IF_ERROR(AddPart(part));
  if (!violations_.empty()) KeepOnlyNames();
  return absl::OkStatus();
}

// Keeps of the header its names, and what the end of the stream is held against.
void RequestBuilder::KeepOnlyNames() {
  request_.groups = {};
  v1::UpdateHeader header;
  if (request_.update.has_num_groups()) header.set_num_groups(request_.update.num_groups());
  header.mutable_request()->set_request_id(request_.update.request().request_id());
  header.mutable_request()->set_validate_only(request_.update.request().validate_only());
  request_.update = std::move(header);
  request_.log_prob = v1::LogProbHeader();
  kept_bytes_ = name_bytes_;
}

absl::Status RequestBuilder::AddPart(v1::GroupPart& part) {
  if (part.ByteSizeLong() > kHeaderBytesMax && (part.has_update() || part.has_log_prob())) {
    return InvalidHeader(part.has_update() ? "update" : "log_prob", part.ByteSizeLong());
  }
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
  if (request_.has_loss() != part.has_update()) {
    return ShortStream(absl::StrCat("the header must be `", request_.has_loss() ? "update" : "log_prob", "`"));
  }
  has_header_ = true;
  CheckKnownFields(part, "", violations_);
  if (request_.has_loss()) {
    request_.update = std::move(*part.mutable_update());
    needs_ = CheckUpdateHeader(request_.update, group_limits_.numbers, violations_);
    if (request_.kind == TrainingRequest::Kind::kVerify) {
      CheckVerification(request_.update, group_limits_.numbers, violations_);
    }
  } else {
    request_.log_prob = std::move(*part.mutable_log_prob());
    CheckLogProbHeader(request_.log_prob, group_limits_.numbers, violations_);
  }
  kept_bytes_ += request_.update.SpaceUsedLong() + request_.log_prob.SpaceUsedLong();
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
  if (groups_.size() >= limits_.groups()) return LimitExceeded("groups", limits_.groups());
  RETURN_IF_ERROR(CheckLimits(group.rollouts(), group.prompt_tokens().size() / sizeof(int32_t)));
  const size_t index = groups_.size();
  const std::string path = absl::StrCat("groups[", index, "]");
  CheckKnownFields(group, path, violations_);
  CheckGroup(path, group, group_limits_, violations_);
  const auto [same, added] = group_of_uid_.emplace(group.uid(), index);
  if (!added) {
    violations_.Add(absl::StrCat(path, ".uid"), absl::StrCat("is the uid of groups[", same->second, "] too"),
                    group.uid());
  }
  groups_.push_back(
      {.uid = group.uid(), .prompt_tokens = static_cast<int64_t>(group.prompt_tokens().size() / sizeof(int32_t))});
  CheckRollouts(index, group.rollouts());
  CountBytes(group, group.rollouts_size(), group.uid().size());
  if (violations_.empty()) request_.groups.push_back(std::move(group));
  return absl::OkStatus();
}

// A message object takes more than its bytes on the wire, and each name is kept a second time.
void RequestBuilder::CountBytes(const google::protobuf::Message& message, int num_rollouts, size_t uid_bytes) {
  const uint64_t bytes = message.ByteSizeLong();
  request_.bytes += bytes;
  kept_bytes_ += bytes + kObjectBytes * (1 + static_cast<uint64_t>(num_rollouts));
  name_bytes_ += uid_bytes + kObjectBytes;
}

absl::Status RequestBuilder::AddMore(v1::MoreRollouts& more) {
  const auto found = group_of_uid_.find(more.uid());
  if (found == group_of_uid_.end()) {
    return ShortStream(absl::StrCat("`more` for uid \"", Shortened(more.uid(), 80), "\", of which no group was sent"));
  }
  RETURN_IF_ERROR(CheckLimits(more.rollouts(), 0));
  CheckKnownFields(more, absl::StrCat("groups[", found->second, "].more"), violations_);
  CheckRollouts(found->second, more.rollouts());
  CountBytes(more, more.rollouts_size(), 0);
  if (!violations_.empty()) return absl::OkStatus();
  v1::PromptGroup& group = request_.groups[found->second];
  for (v1::Rollout& rollout : *more.mutable_rollouts()) *group.add_rollouts() = std::move(rollout);
  return absl::OkStatus();
}

void RequestBuilder::CheckRollouts(size_t group_index,
                                   const google::protobuf::RepeatedPtrField<v1::Rollout>& rollouts) {
  SeenGroup& group = groups_[group_index];
  for (int i = 0; i < rollouts.size(); ++i) {
    const std::string path = absl::StrCat("groups[", group_index, "].rollouts[", group.num_rollouts++, "]");
    CheckRollout({.path = path, .uid = group.uid, .prompt_tokens = group.prompt_tokens}, rollouts[i], needs_,
                 group_limits_, violations_);
    name_bytes_ += rollouts[i].rollout_id().size() + kNameBytes;
    if (!rollout_ids_.insert(rollouts[i].rollout_id()).second) {
      violations_.Add(path + ".rollout_id",
                      absl::StrCat("\"", Shortened(rollouts[i].rollout_id(), 80), "\" was sent before"), group.uid);
    }
  }
}

absl::Status RequestBuilder::AddEnd(const v1::StreamEnd& end) {
  if (!has_header_) return ShortStream("`end` comes before the header");
  CheckKnownFields(end, "end", violations_);
  has_end_ = true;
  end_ = end;
  return absl::OkStatus();
}

absl::Status RequestBuilder::CheckCounts() const {
  if (!has_header_) return ShortStream("the stream has no header");
  if (!has_end_) return ShortStream("the stream was cut: it has no `end`");
  const uint64_t groups = groups_.size();
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
  const uint64_t steps = NumSteps(header, groups);
  if (steps > limits_.steps()) return LimitExceeded("steps", limits_.steps());
  request_.num_steps = steps;
  if (header.has_trace_step() && header.trace_step() >= request_.num_steps) {
    return MakeError(Reason::kInvalidRequest,
                     absl::StrCat("update.trace_step is ", header.trace_step(), ": this request has ",
                                  request_.num_steps, " steps, counted from 0"),
                     {.field = "update.trace_step"});
  }
  const uint64_t epochs_planned = header.shuffle() && header.has_ppo_epochs() ? header.ppo_epochs() : 1;
  if (groups * epochs_planned > limits_.planned_groups()) {
    return LimitExceeded("planned_groups", "groups over all steps of a plan", limits_.planned_groups());
  }
  const uint64_t rollouts_max = kPlannedRolloutsPerGroup * limits_.planned_groups();
  if (request_.num_rollouts * epochs_planned > rollouts_max) {
    return LimitExceeded("planned_groups", "rollouts over all steps of a plan", rollouts_max);
  }
  if (steps > 1 && header.old().from() == v1::LogProbSource::ON_POLICY) {
    return MakeError(
        Reason::kUnsupported,
        absl::StrCat("update.old is ON_POLICY, which is right for one optimizer step only; this request has ", steps,
                     ": use WEIGHTS"),
        {.field = "update.old.from"});
  }
  return absl::OkStatus();
}

absl::Status RequestBuilder::CheckUpdate() {
  RETURN_IF_ERROR(CheckSteps());
  if (request_.kind == TrainingRequest::Kind::kVerify && request_.num_steps != 1) {
    Violations violations;
    violations.Add("update.ppo_mini_batch_size",
                   absl::StrCat("and ppo_epochs ask for ", request_.num_steps,
                                " optimizer steps, and VerifyGroup compares the gradients of one: leave both out, or "
                                "send the groups of one mini-batch"));
    return violations.ToStatus();
  }
  return FillAdvantages(request_.update.loss(), group_limits_.numbers, request_.groups);
}

absl::StatusOr<std::shared_ptr<const TrainingRequest>> RequestBuilder::Finish() {
  RETURN_IF_ERROR(CheckCounts());
  if (groups_.empty()) violations_.Add("groups", "is empty: a request has at least one group");
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].num_rollouts == 0) {
      violations_.Add(absl::StrCat("groups[", i, "].rollouts"), "is empty: a group has at least one rollout",
                      groups_[i].uid);
    }
  }
  if (!violations_.empty()) return violations_.ToStatus();
  request_.digest = DigestOf(request_.update, request_.groups);  // of what was sent: before rewards become advantages
  if (request_.has_loss()) request_.refused = CheckUpdate();
  return std::make_shared<const TrainingRequest>(std::move(request_));
}

std::shared_ptr<const TrainingRequest> RequestBuilder::Refused(const absl::Status& why) const {
  const bool told = HasReason(why, Reason::kLimitExceeded) || HasReason(why, Reason::kInvalidRequest);
  if (!told || request_.update.request().request_id().empty()) return nullptr;
  auto request = std::make_shared<TrainingRequest>();
  *request->update.mutable_request() = request_.update.request();
  request->refused = why;
  return request;
}

}  // namespace stemma
