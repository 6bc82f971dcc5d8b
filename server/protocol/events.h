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
#include "common/base/logging.h"
#include "server/planner/calibration.h"
#include "server/protocol/incident.h"
#include "server/protocol/request_plan.h"
#include "stemma/internal/v1/checkpoint.pb.h"
#include "stemma/internal/v1/journal.pb.h"
#include "stemma/internal/v1/worker.pb.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

using SessionId = uint64_t;  // a worker's stream; never used twice
using CallId = uint64_t;     // a client's call; never used twice
using PlanId = uint64_t;     // one making of a plan; never used twice

// Between two words about how far a checkpoint is read: few enough of them for terabytes, and soon enough for any
// --worker-stalled-after.
inline constexpr uint64_t kCheckpointProgressBytes = 16u << 20;

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
  bool name_is_free = false;  // no export on the disk has it
};
struct SaveCheckpointEvent {
  CallId call = 0;
  v1::SaveCheckpointRequest request;
};
struct LoadCheckpointEvent {
  CallId call = 0;
  v1::LoadCheckpointRequest request;
};
struct DeleteExportEvent {
  CallId call = 0;
  std::string name;
};
struct ListCheckpointsEvent {
  CallId call = 0;
};
struct VerifyCheckpointEvent {
  CallId call = 0;
  std::string name;
};
struct PinCheckpointEvent {
  CallId call = 0;
  std::string name;
  bool pinned = false;
};
struct DeleteCheckpointEvent {
  CallId call = 0;
  std::string name;
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
// A plan was made, and the request spooled where that was asked for, or not (Cancelled: whoever wanted it left).
struct PlannedEvent {
  PlanId id = 0;
  std::shared_ptr<absl::StatusOr<RequestPlan>> plan;  // the event gives it away
  std::optional<internal::v1::SpoolFile> spool = {};
};
// What LoadAction asked for was read from the spool, or could not be.
struct LoadedEvent {
  PlanId id = 0;
  std::shared_ptr<absl::StatusOr<LoadedRequest>> loaded;  // the event gives it away
};
// The end of a MakeCheckpointFolderAction.
struct CheckpointFolderEvent {
  uint64_t id = 0;
  absl::Status made;
};
// A commit or a reading of a checkpoint has read kCheckpointProgressBytes more: the disk answers.
struct CheckpointProgressEvent {};
// The end of a CommitCheckpointAction.
struct CheckpointWrittenEvent {
  uint64_t id = 0;
  absl::StatusOr<internal::v1::KnownCheckpoint> written;
};
// The end of a ReadCheckpointAction. Errors: CORRUPT_CHECKPOINT; NotFound; INVALID_REQUEST - it is of another model;
// Cancelled - it was dropped.
struct CheckpointReadEvent {
  uint64_t id = 0;
  absl::StatusOr<std::string> client_state;  // as it was saved
};
// The end of a RemoveCheckpointAction. Errors: NotFound; those of the disk, after which it may still be there.
struct CheckpointRemovedEvent {
  std::string name;
  absl::Status removed;
};
// The failure of a MakeExportFolderAction.
struct ExportFolderEvent {
  std::string id;
  absl::Status failure;
};
// The end of a RemoveExportAction. Errors: NotFound; those of the disk, after which it may still be there.
struct ExportRemovedEvent {
  CallId call = 0;
  std::string name;
  absl::Status removed;
};
// The first event of a server.
struct StartEvent {};
struct DrainEvent {
  absl::Duration within;  // for what runs: a step, a log-prob pass, an export
};
struct TickEvent {};

using Event =
    std::variant<WorkerMessageEvent, WorkerLostEvent, SubmitEvent, ExportEvent, DeleteExportEvent, SaveCheckpointEvent,
                 LoadCheckpointEvent, ListCheckpointsEvent, VerifyCheckpointEvent, PinCheckpointEvent,
                 DeleteCheckpointEvent, GetRequestEvent, CancelEvent, ReadResultsEvent, ListRequestsEvent,
                 GetModelEvent, GetServerInfoEvent, CallGoneEvent, PlannedEvent, LoadedEvent, CheckpointFolderEvent,
                 CheckpointProgressEvent, CheckpointWrittenEvent, CheckpointReadEvent, CheckpointRemovedEvent,
                 ExportFolderEvent, ExportRemovedEvent, StartEvent, DrainEvent, TickEvent>;

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
  std::string spool_name = "";  // the file that keeps the request with its plan; empty: none does
  bool writes_rows = false;     // the request is an update to be accepted, whose rows need room on the disk
};
// Reads a request and its plan back. Answered by one LoadedEvent.
struct LoadAction {
  PlanId id = 0;
  internal::v1::SpoolFile file;
};
struct RemoveSpoolAction {
  std::string name;
};
// A row of the journal, durable before the next action is executed.
struct JournalAction {
  uint64_t n = 0;
  std::string body;                                                                // a JournalRow
  internal::v1::JournalRow::RowCase kind = internal::v1::JournalRow::ROW_NOT_SET;  // the body's
  bool settles = false;   // all rows are moved out of the write-ahead log
  bool replaces = false;  // a snapshot: the rows before it are dropped
};
// Makes the empty folder, TemporaryFolderOf(name), that the ranks of a save write into. Answered by one
// CheckpointFolderEvent.
struct MakeCheckpointFolderAction {
  uint64_t id = 0;
  std::string name;  // never used before
};
// Ends a save: what the manifest says is read back, made durable and renamed. Answered by one CheckpointWrittenEvent.
struct CommitCheckpointAction {
  uint64_t id = 0;
  std::string folder;
  internal::v1::CheckpointManifest manifest;
  std::string client_state;
};
// Reads every byte of a checkpoint. Answered by one CheckpointReadEvent.
struct ReadCheckpointAction {
  uint64_t id = 0;
  std::string name;
  std::string manifest_sha256;
  bool for_recovery = false;  // goes before those that clients ask for
};
// Drops a client's reading, if it was not begun. Its event comes all the same.
struct DropReadingAction {
  uint64_t id = 0;
};
// Makes a checkpoint none; its files go beside other work. Answered by one CheckpointRemovedEvent.
struct RemoveCheckpointAction {
  std::string name;
};
// Removes the folder of a save that failed.
struct DropSaveAction {
  std::string folder;  // .tmp-...
};
// Removes the folders of exports that were cut short with their workers. No rank writes one: those of a generation that
// has ended write for nobody, and of the next one none has been told to.
struct RemoveUnfinishedExportsAction {};
// Makes the empty folder, of that name beside the exports, that the ranks of a running export write into. Carried out
// before what follows; only its failure is answered, by an ExportFolderEvent.
struct MakeExportFolderAction {
  std::string id;  // of the job
  std::string folder;
};
// Makes an export none; its files go beside other work. Answered by one ExportRemovedEvent.
struct RemoveExportAction {
  CallId call = 0;
  std::string name;
};
struct StopPlanAction {
  PlanId id = 0;
};
struct CloseSessionAction {
  SessionId session = 0;
  absl::Status status;
};

using Reply =
    std::variant<absl::Status, v1::RequestStatus, v1::ListRequestsResponse, v1::ModelInfo, v1::ServerInfo,
                 v1::ExportWeightsResponse, v1::Checkpoint, v1::LoadCheckpointResponse, v1::ListCheckpointsResponse,
                 v1::DeleteCheckpointResponse, v1::DeleteExportResponse, v1::VerifyGroupResponse>;
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
// Keeps what is known of a generation that was lost, beside what its ranks leave (common/base/incidents.h).
struct IncidentAction {
  Incident incident;
};
struct DrainedAction {};  // nothing runs any more; the worker was told to leave

using Action = std::variant<SendAction, SendPayloadAction, PlanAction, LoadAction, RemoveSpoolAction, JournalAction,
                            MakeCheckpointFolderAction, CommitCheckpointAction, ReadCheckpointAction, DropReadingAction,
                            RemoveCheckpointAction, DropSaveAction, RemoveUnfinishedExportsAction,
                            MakeExportFolderAction, RemoveExportAction, StopPlanAction, CloseSessionAction, ReplyAction,
                            ChunkAction, ReadinessAction, SaveCalibrationAction, IncidentAction, DrainedAction>;

// A line of the log. error: somebody has to act, or weights are lost; warning: something was lost or refused, and the
// server goes on by itself; info: all else.
struct LoggedReason {
  LogLevel level = LogLevel::kInfo;
  std::string text;
};

struct Decision {
  std::vector<Action> actions;
  std::vector<LoggedReason> reasons;  // none: nothing worth a line
};

}  // namespace stemma::server
