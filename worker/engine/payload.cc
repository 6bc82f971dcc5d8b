#include "worker/engine/payload.h"

#include <utility>

namespace stemma::worker {
namespace {

absl::Status Append(Payload& payload, v1::PromptGroup group) {
  if (!group.prompt_tokens().empty()) {
    payload.groups.push_back(std::move(group));
    return absl::OkStatus();
  }
  if (payload.groups.empty() || payload.groups.back().uid() != group.uid()) {
    return absl::InvalidArgumentError("payload: group " + group.uid() + " is continued but was not begun");
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

}  // namespace

absl::Status PayloadStore::Add(internal::v1::PayloadChunk chunk) {
  Payload& payload = payloads_[chunk.id()];
  if (payload.complete) return absl::InvalidArgumentError("payload " + chunk.id() + " is complete already");
  for (v1::PromptGroup& group : *chunk.mutable_groups()) {
    if (absl::Status status = Append(payload, std::move(group)); !status.ok()) {
      Drop(chunk.id());
      return status;
    }
  }
  if (chunk.last()) Complete(payload);
  return absl::OkStatus();
}

Payload* PayloadStore::FindComplete(const std::string& id) {
  const auto it = payloads_.find(id);
  return it == payloads_.end() || !it->second.complete ? nullptr : &it->second;
}

}  // namespace stemma::worker
