// What the coordinator's state machine is told and what it asks for. Plain data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/admission/training_request.h"
#include "server/planner/calibration.h"
#include "server/protocol/request_plan.h"
#include "stemma/internal/v1/worker.pb.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

using SessionId = uint64_t;  // a worker's stream; never used twice
using CallId = uint64_t;     // a client's call; never used twice
using PlanId = uint64_t;     // one making of a plan; never used twice

// ----------------------------------------------------------------------------------------------------------------
// events

struct WorkerMessageEvent {
  SessionId session = 0;
  internal::v1::WorkerMessage message;  // of a new session: Register
};
struct WorkerLostEvent {
  SessionId session = 0;
  std::string reason;
};
struct SubmitEvent {
  CallId call = 0;
  std::shared_ptr<const TrainingRequest> request;
};
struct ExportEvent {
  CallId call = 0;
  v1::ExportWeightsRequest request;
};
struct GetRequestEvent {
  CallId call = 0;
  std::string request_id;
  std::optional<absl::Duration> wait;
};
struct CancelEvent {
  CallId call = 0;
  std::string request_id;
};
struct ReadResultsEvent {
  CallId call = 0;
  std::string request_id;
};
struct ListRequestsEvent {
  CallId call = 0;
};
struct GetModelEvent {
  CallId call = 0;
};
struct GetServerInfoEvent {
  CallId call = 0;
};
struct CallGoneEvent {  // the client left; a training request goes on
  CallId call = 0;
};
// A plan was made, or not (Cancelled: whoever wanted it left).
struct PlannedEvent {
  PlanId id = 0;
  std::shared_ptr<absl::StatusOr<RequestPlan>> plan;  // the event gives it away
};
struct DrainEvent {
  absl::Duration within;  // for what runs: a step, a log-prob pass, an export
};
struct TickEvent {};

using Event = std::variant<WorkerMessageEvent, WorkerLostEvent, SubmitEvent, ExportEvent, GetRequestEvent, CancelEvent,
                           ReadResultsEvent, ListRequestsEvent, GetModelEvent, GetServerInfoEvent, CallGoneEvent,
                           PlannedEvent, DrainEvent, TickEvent>;

// ---------------------------------------------------------------------------------------------------------------
// actions

struct SendAction {
  SessionId session = 0;
  internal::v1::ServerMessage message;
};
// Some of the request's groups as PayloadChunks under `id`, before whatever is sent later.
struct SendPayloadAction {
  SessionId session = 0;
  std::string id;
  std::shared_ptr<const TrainingRequest> request;
  std::vector<uint32_t> groups;  // indices, ascending
};
// Answered by one PlannedEvent, unless StopPlanAction comes before it.
struct PlanAction {
  PlanId id = 0;
  std::shared_ptr<const TrainingRequest> request;
  v1::RunConfig config;
  Rates rates;
};
struct StopPlanAction {
  PlanId id = 0;
};
struct CloseSessionAction {
  SessionId session = 0;
  absl::Status status;
};

using Reply = std::variant<absl::Status, v1::RequestStatus, v1::ListRequestsResponse, v1::ModelInfo, v1::ServerInfo,
                           v1::ExportWeightsResponse>;
// Ends the call; an OK Status ends a stream of chunks.
struct ReplyAction {
  CallId call = 0;
  Reply reply;
};
struct ChunkAction {
  CallId call = 0;
  std::shared_ptr<const v1::GroupResult> chunk;
};
struct ReadinessAction {
  bool ready = false;
};
// The calibration, whole: it replaces what the data directory holds.
struct SaveCalibrationAction {
  CalibrationBook book;
};
struct DrainedAction {};  // nothing runs any more; the worker was told to leave

using Action = std::variant<SendAction, SendPayloadAction, PlanAction, StopPlanAction, CloseSessionAction, ReplyAction,
                            ChunkAction, ReadinessAction, SaveCalibrationAction, DrainedAction>;

struct Decision {
  std::vector<Action> actions;
  std::string reason;  // empty: nothing worth a line in the log
};

}  // namespace stemma::server
