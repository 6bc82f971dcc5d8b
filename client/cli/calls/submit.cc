#include "client/cli/calls/submit.h"

#include <memory>

#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

constexpr uint64_t kMessageBytesTarget = 4 << 20;
// Tag and length of a rollout inside its message.
constexpr uint64_t kFramingBytes = 16;

// Cuts a group into messages: the first holds the prompt, the others continue its rollouts.
bool SendGroup(const v1::PromptGroup& group, uint64_t message_bytes,
               const std::function<bool(const v1::GroupPart&)>& send) {
  v1::GroupPart part;
  v1::PromptGroup& head = *part.mutable_group();
  head.set_uid(group.uid());
  head.set_prompt_tokens(group.prompt_tokens());
  if (group.has_stat_group()) head.set_stat_group(group.stat_group());
  uint64_t bytes = part.ByteSizeLong();
  bool empty = true;  // no rollout in `part` yet
  for (const v1::Rollout& rollout : group.rollouts()) {
    const uint64_t rollout_bytes = rollout.ByteSizeLong() + kFramingBytes;
    if (!empty && bytes + rollout_bytes > message_bytes) {
      if (!send(part)) return false;
      part.mutable_more()->Clear();
      part.mutable_more()->set_uid(group.uid());
      bytes = part.ByteSizeLong();
    }
    *(part.has_group() ? part.mutable_group()->add_rollouts() : part.mutable_more()->add_rollouts()) = rollout;
    bytes += rollout_bytes;
    empty = false;
  }
  return send(part);
}

v1::GroupPart EndOf(const std::vector<v1::PromptGroup>& groups) {
  v1::GroupPart part;
  part.mutable_end()->set_num_groups(groups.size());
  uint64_t num_rollouts = 0;
  for (const v1::PromptGroup& group : groups) num_rollouts += group.rollouts_size();
  part.mutable_end()->set_num_rollouts(num_rollouts);
  return part;
}

// Sends a request with a loss by a call that is answered once.
absl::Status SendUpdate(grpc::ClientWriter<v1::GroupPart>& writer, const v1::UpdateHeader& header,
                        const std::vector<v1::PromptGroup>& groups) {
  v1::GroupPart first;
  *first.mutable_update() = header;
  SendParts(first, groups, kMessageBytesTarget, [&](const v1::GroupPart& part) { return writer.Write(part); });
  writer.WritesDone();
  return RpcStatus(writer.Finish());  // a broken stream shows here, with its reason
}

}  // namespace

bool SendParts(const v1::GroupPart& first, const std::vector<v1::PromptGroup>& groups, uint64_t message_bytes,
               const std::function<bool(const v1::GroupPart&)>& send) {
  if (!send(first)) return false;
  for (const v1::PromptGroup& group : groups) {
    if (!SendGroup(group, message_bytes, send)) return false;
  }
  return send(EndOf(groups));
}

absl::StatusOr<v1::RequestStatus> UpdateActor(v1::TrainingService::Stub& stub, grpc::ClientContext& context,
                                              const v1::UpdateHeader& header,
                                              const std::vector<v1::PromptGroup>& groups) {
  v1::RequestStatus response;
  RETURN_IF_ERROR(SendUpdate(*stub.UpdateActor(&context, &response), header, groups));
  return response;
}

absl::StatusOr<v1::VerifyGroupResponse> VerifyGroup(v1::TrainingService::Stub& stub, grpc::ClientContext& context,
                                                    const v1::UpdateHeader& header,
                                                    const std::vector<v1::PromptGroup>& groups) {
  v1::VerifyGroupResponse response;
  RETURN_IF_ERROR(SendUpdate(*stub.VerifyGroup(&context, &response), header, groups));
  return response;
}

absl::Status ComputeLogProb(v1::TrainingService::Stub& stub, grpc::ClientContext& context,
                            const v1::LogProbHeader& header, const std::vector<v1::PromptGroup>& groups,
                            const std::function<void(const v1::GroupResult&)>& receive) {
  const auto stream = stub.ComputeLogProb(&context);
  v1::GroupPart first;
  *first.mutable_log_prob() = header;
  // The server answers after `end`, so nothing comes back while we write.
  SendParts(first, groups, kMessageBytesTarget, [&](const v1::GroupPart& part) { return stream->Write(part); });
  stream->WritesDone();
  v1::GroupResult result;
  while (stream->Read(&result)) receive(result);
  return RpcStatus(stream->Finish());
}

}  // namespace stemma::cli
