// Sends a request's groups: header, groups in messages of at most 4 MiB (a larger group continues with `more`), end.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/calls/connection.h"
#include "stemma/v1/training.pb.h"

namespace stemma::cli {

// Gives every message of a request to `send` until that returns false (the stream broke). A message exceeds
// `message_bytes` only where one rollout (or the prompt) does alone. `first` holds the header. Returns false if cut
// short.
bool SendParts(const v1::GroupPart& first, const std::vector<v1::PromptGroup>& groups, uint64_t message_bytes,
               const std::function<bool(const v1::GroupPart&)>& send);

// `context` lets a caller cancel from a signal handler's thread; it must be fresh.
absl::StatusOr<v1::RequestStatus> UpdateActor(v1::TrainingService::Stub& stub, grpc::ClientContext& context,
                                              const v1::UpdateHeader& header,
                                              const std::vector<v1::PromptGroup>& groups);

// Nothing is applied. `context`: as UpdateActor's.
absl::StatusOr<v1::VerifyGroupResponse> VerifyGroup(v1::TrainingService::Stub& stub, grpc::ClientContext& context,
                                                    const v1::UpdateHeader& header,
                                                    const std::vector<v1::PromptGroup>& groups);

// Calls `receive` with each message of results.
absl::Status ComputeLogProb(v1::TrainingService::Stub& stub, grpc::ClientContext& context,
                            const v1::LogProbHeader& header, const std::vector<v1::PromptGroup>& groups,
                            const std::function<void(const v1::GroupResult&)>& receive);

}  // namespace stemma::cli
