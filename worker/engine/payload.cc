#include "worker/engine/payload.h"

#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace stemma::worker {
namespace {

// Below, the next request's payload soon takes the memory again.
constexpr uint64_t kLargePayloadBytes = 16 << 20;

absl::Status Refuse(uint32_t index, const v1::PromptGroup& group, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("payload: group ", index, ", ", group.uid(), ", ", why));
}

absl::Status Append(Payload& payload, uint32_t index, v1::PromptGroup group) {
  if (index >= kGroupIndicesMax) return Refuse(index, group, absl::StrCat("is not below ", kGroupIndicesMax));
  const size_t held = payload.groups.size();  // the last one held is the last one that came
  if (!group.prompt_tokens().empty()) {
    if (index < held) return Refuse(index, group, absl::StrCat("comes after group ", held - 1));
    payload.groups.resize(index + size_t{1});
    payload.groups.back() = std::move(group);
    return absl::OkStatus();
  }
  if (index + size_t{1} != held || payload.groups.back().uid() != group.uid()) {
    return Refuse(index, group, "is continued but was not begun");
  }
  for (v1::Rollout& rollout : *group.mutable_rollouts()) {
    *payload.groups.back().add_rollouts() = std::move(rollout);
  }
  return absl::OkStatus();
}

void Complete(Payload& payload) {
  payload.complete = true;
  for (const v1::PromptGroup& group : payload.groups) {
    GroupShape shape;
    shape.prompt_tokens = static_cast<int64_t>(group.prompt_tokens().size() / sizeof(int32_t));
    for (const v1::Rollout& rollout : group.rollouts()) {
      shape.response_tokens.push_back(static_cast<int64_t>(rollout.response_tokens().size() / sizeof(int32_t)));
    }
    payload.shapes.push_back(std::move(shape));
  }
}

absl::Status AddChunk(Payload& payload, internal::v1::PayloadChunk& chunk) {
  if (chunk.group_indices_size() != chunk.groups_size()) {
    return absl::InvalidArgumentError(absl::StrCat("payload ", chunk.id(), ": ", chunk.groups_size(), " groups with ",
                                                   chunk.group_indices_size(), " indices"));
  }
  payload.bytes += chunk.ByteSizeLong();
  for (int i = 0; i < chunk.groups_size(); ++i) {
    RETURN_IF_ERROR(Append(payload, chunk.group_indices(i), std::move(*chunk.mutable_groups(i))));
  }
  if (chunk.last()) Complete(payload);
  return absl::OkStatus();
}

}  // namespace

const std::vector<double>* Payload::FindEntryLogProbs(const std::string& weights, size_t group, size_t rollout) const {
  const auto found = entry_log_probs.find(weights);
  return found == entry_log_probs.end() ? nullptr : &found->second[group][rollout];
}

absl::Status PayloadStore::Add(internal::v1::PayloadChunk chunk) {
  Payload& payload = payloads_[chunk.id()];
  if (payload.complete) return absl::InvalidArgumentError("payload " + chunk.id() + " is complete already");
  if (payload.refused) return absl::InvalidArgumentError("payload " + chunk.id() + " lacks a chunk that was refused");
  absl::Status status = AddChunk(payload, chunk);
  if (status.ok()) return status;
  payload = Payload();
  payload.refused = true;
  return status;
}

void PayloadStore::Drop(const std::string& id) {
  const auto it = payloads_.find(id);
  if (it == payloads_.end()) return;
  const bool is_large = it->second.bytes >= kLargePayloadBytes;
  payloads_.erase(it);
  if (is_large) malloc_trim(0);
}

absl::StatusOr<Payload*> PayloadStore::FindComplete(const std::string& id) {
  const auto it = payloads_.find(id);
  if (it != payloads_.end() && it->second.complete) return &it->second;
  return absl::NotFoundError("payload " + id + " is not here, or not complete");
}

}  // namespace stemma::worker
