#include "tests/server/protocol/scenario.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/error.h"
#include "common/base/mesh.h"
#include "glog/logging.h"
#include "server/protocol/coordinator_state.h"
#include "server/protocol/journal_checks.h"
#include "server/protocol/journal_fold.h"
#include "tests/server/protocol/scenario_answers.h"
#include "tests/server/protocol/scenario_checkpoints.h"
#include "tests/server/protocol/scenario_plans.h"
#include "tests/server/protocol/scenario_text.h"

namespace stemma::server {
namespace {

using internal::v1::StepKey;

class Scenario {
 public:
  Scenario() { Begin(); }

  void Run(const Command& command, std::string& out) {
    const std::string& name = command.words.at(0);
    if (name == "hold") {
      plans_held_ = true;
      return;
    }
    if (name == "mesh" || name == "replays") {  // first of all
      SetMesh(command);
      replays_ |= name == "replays";
      requests_kept_ = command.Get("kept", requests_kept_);
      dtype_ = command.Text("dtype");
      journal_.Clear();
      num_rows_ = 0;
      return Begin();
    }
    if (name == "rows" || name == "incidents" || name == "logs") {
      (name == "rows" ? shows_rows_ : name == "logs" ? shows_logs_ : shows_incidents_) = true;
      return;
    }
    if (name == "restart") {
      if (command.words.size() > 1) replays_ = command.words[1] == "replays";
      if (command.Has("dtype")) dtype_ = command.Text("dtype");
      SetMesh(command);
      return Restart(out);
    }
    if (name == "damage") return DamageFiles(command);
    if (const auto events = checkpoints_.Tell(command)) {
      for (const Event& event : *events) Show(state_->Handle(now_, event), out);
      return;
    }
    if (name == "new") {  // another directory, with these checkpoints
      journal_.Clear();
      num_rows_ = 0;
      resume_ = command.Text("resume");
      if (command.Has("dtype")) dtype_ = command.Text("dtype");
      prefix_ = "N";
      return Restart(out);
    }
    if (name == "automatic") {  // first of all
      every_steps_ = command.Get("every", 0);
      every_minutes_ = command.Get("minutes", 60);
      return Begin();
    }
    if (name == "hung") {
      handled_at_ = now_ + absl::Seconds(command.Id(1));
      return;
    }
    if (name == "asleep") {
      now_ += absl::Seconds(command.Id(1));
      return;
    }
    if (name == "advance") Advance(absl::Seconds(command.Id(1)), out);
    if (name == "beat") return Beat(command, out);
    if (name == "room") return void(left_bytes_ = command.Id(1));
    const auto left = [this] { return left_bytes_; };
    Show(state_->Handle(now_, EventOf(name, command), left, {.handled_at = handled_at_}), out);
  }

 private:
  void Begin() {
    std::string hidden;
    Restart(hidden);
  }

  void DamageFiles(const Command& command) {
    if (command.words.size() == 1) return spool_.clear();
    checkpoints_.Damage(command.words[1]);
  }

  // Another process, with what the journal and the spool of the last one hold.
  void Restart(std::string& out) {
    connected_.clear();
    state_ = std::make_unique<CoordinatorState>(Options());
    Show(state_->Handle(now_, StartEvent{}), out);
  }

  // Ticks whenever the state wants one, as the coordinator's thread does.
  void Advance(absl::Duration duration, std::string& out) {
    const absl::Time end = now_ + duration;
    for (absl::Time next = state_->NextDeadline(); next < end; next = state_->NextDeadline()) {
      now_ = std::max(now_, next);  // after a sleep a deadline may be past
      Show(state_->Handle(now_, TickEvent{}), out);
    }
    now_ = end;
  }

  void SetMesh(const Command& command) {
    mesh_ = MakeMesh({.dp = static_cast<uint32_t>(command.Get("dp", DpSize(mesh_))),
                      .tp = static_cast<uint32_t>(command.Get("tp", TpSize(mesh_)))});
  }

  // A heartbeat at the end of every second, of the worker that was named last or, in a mesh, of each one that is
  // connected: engines that stand still, or of which one moves.
  void Beat(const Command& command, std::string& out) {
    for (uint64_t second = 0; second < command.Id(1); ++second) {
      Advance(absl::Seconds(1), out);
      if (command.Has("moving")) ++progress_;
      const std::set<SessionId> sessions = NumRanks(mesh_) == 1 ? std::set<SessionId>{session_} : connected_;
      for (const SessionId session : sessions) {
        WorkerMessageEvent event{.session = session, .message = {}};
        event.message.mutable_heartbeat()->set_phase("suffix");
        event.message.mutable_heartbeat()->set_progress(session == *sessions.begin() ? progress_ : 0);
        Show(state_->Handle(now_, event), out);
      }
      Show(state_->Handle(now_, TickEvent{}), out);
    }
  }

  // Writes the actions down; a plan that is asked for is made at once, unless plans are held.
  void Show(const Decision& decision, std::string& out) {
    std::vector<PlannedEvent> planned;
    std::vector<LoadedEvent> loaded;
    std::vector<Event> of_disk;
    if (shows_logs_) absl::StrAppend(&out, LogText(decision));
    for (const Action& action : decision.actions) {
      for (Event& event : checkpoints_.Execute(action)) of_disk.push_back(std::move(event));
      if (const auto* plan = std::get_if<PlanAction>(&action)) {
        plans_[plan->id] = *plan;
        if (!plans_held_) planned.push_back(Planned(plan->id, false));
        if (!plans_held_) continue;
      }
      if (const auto* send = std::get_if<SendAction>(&action); send != nullptr && IsForAnother(*send)) {
        absl::StrAppend(&out, "THE KEY OF ANOTHER WORKER: ");
      }
      if (const auto* send = std::get_if<SendAction>(&action); send != nullptr && send->message.has_prepare()) {
        key_ = keys_[send->session] = send->message.prepare().key();
      }
      if (const auto* close = std::get_if<CloseSessionAction>(&action)) connected_.erase(close->session);
      if (const auto* load = std::get_if<LoadAction>(&action)) loaded.push_back(Loaded(*load));
      if (const auto* remove = std::get_if<RemoveSpoolAction>(&action)) CHECK_EQ(spool_.erase(remove->name), 1u);
      const auto* row = std::get_if<JournalAction>(&action);
      if (row != nullptr) Write(*row);
      const bool is_incident = std::holds_alternative<IncidentAction>(action);
      if (is_incident ? shows_incidents_ : row == nullptr || shows_rows_)
        absl::StrAppend(&out, ActionText(action), "\n");
    }
    if (IsIgnored(decision)) absl::StrAppend(&out, "ignored\n");
    for (const PlannedEvent& event : planned) Show(state_->Handle(now_, event), out);
    for (const LoadedEvent& event : loaded) Show(state_->Handle(now_, event), out);
    for (const Event& event : of_disk) Show(state_->Handle(now_, event), out);
  }

  void Write(const JournalAction& action) {
    CHECK_EQ(action.n, ++num_rows_);
    internal::v1::JournalRow row;
    CHECK(row.ParseFromString(action.body));
    absl::Status folded = FoldRow(row, requests_kept_, journal_);
    folded.Update(CheckJournalState(journal_));  // the server may end behind any row
    CHECK(folded.ok()) << folded;
  }

  LoadedEvent Loaded(const LoadAction& load) const {
    auto loaded = std::make_shared<absl::StatusOr<LoadedRequest>>(absl::DataLossError("x"));
    if (const auto request = spool_.find(load.file.name()); request != spool_.end()) {
      const auto& [kept, mesh] = request->second;
      *loaded = LoadedRequest{kept, *FakePlan(*kept, DpSize(mesh)), mesh};
    }
    return {.id = load.id, .loaded = std::move(loaded)};
  }

  // A step's messages to a worker carry its own incarnation.
  bool IsForAnother(const SendAction& send) const {
    const internal::v1::ServerMessage& message = send.message;
    const std::string& own = incarnations_.at(send.session);
    return (message.has_prepare() && message.prepare().key().incarnation() != own) ||
           (message.has_apply() && message.apply().key().incarnation() != own);
  }

  PlannedEvent Planned(PlanId id, bool fail) {
    const PlanAction& action = plans_.at(id);
    absl::StatusOr<RequestPlan> plan = FakePlan(*action.request, DpSize(mesh_));
    if (fail) plan = MakeError(Reason::kGroupTooLarge, "x");
    PlannedEvent event = {.id = id, .plan = std::make_shared<absl::StatusOr<RequestPlan>>(std::move(plan))};
    if (fail || action.spool_name.empty()) return event;
    spool_[action.spool_name] = {action.request, mesh_};
    event.spool.emplace().set_name(action.spool_name);
    return event;
  }

  CoordinatorOptions Options() const {
    CoordinatorOptions options;
    *options.config.mutable_mesh() = mesh_;
    options.config.set_durability(replays_ ? v1::REPLAY : v1::REWIND);
    options.config.set_dtype(dtype_);
    options.config.mutable_checkpoints()->set_every_steps(every_steps_);
    options.config.mutable_checkpoints()->set_every_minutes(every_minutes_);
    options.checkpoints = checkpoints_.Found();
    options.resume = resume_;
    options.keeps_files = true;
    options.epoch = std::max<uint64_t>(9, journal_.epoch() + 1);
    options.journal = journal_;
    options.journal_rows = num_rows_;
    options.lineage_prefix = options.epoch == 9 ? prefix_ : absl::StrCat(prefix_, options.epoch);
    options.data_directory = "data";
    options.worker_lost_after = absl::Seconds(5);
    options.worker_stalled_after = absl::Seconds(30);
    options.worker_return_within = absl::Seconds(60);
    v1::Limits& limits = *options.config.mutable_limits();
    limits.set_requests_in_flight(3);
    limits.set_request_bytes_in_flight(100);
    limits.set_requests_kept(requests_kept_);
    return options;
  }

  Event EventOf(const std::string& name, const Command& command) {
    if (name == "advance") return TickEvent{};
    if (name == "drain") return DrainEvent{absl::Seconds(command.Get("within", 20))};
    if (name == "lose") {
      connected_.erase(command.Id(1));
      return WorkerLostEvent{command.Id(1), "it died"};
    }
    if (name == "submit") return SubmitEvent{command.Id(1), MakeUpdate(command)};
    if (name == "log_prob") return SubmitEvent{command.Id(1), MakeLogProb(command)};
    if (name == "verify_group") return SubmitEvent{command.Id(1), MakeVerification(command)};
    if (name == "export") return ExportEvent{command.Id(1), MakeExport(command), command.Has("absent")};
    if (name == "get") return MakeGet(command);
    if (name == "cancel") return CancelEvent{command.Id(1), command.words.at(2)};
    if (name == "results") return ReadResultsEvent{command.Id(1), command.words.at(2)};
    if (name == "list") return ListRequestsEvent{command.Id(1)};
    if (name == "model") return GetModelEvent{command.Id(1)};
    if (name == "info") return GetServerInfoEvent{command.Id(1)};
    if (name == "gone") return CallGoneEvent{command.Id(1)};
    if (name == "planned") return Planned(command.Id(1), command.Has("fail"));
    if (const auto call = CheckpointCallOf(name, command)) return *call;
    return WorkerEvent(name, command);
  }

  static Event MakeGet(const Command& command) {
    std::optional<absl::Duration> wait;
    if (command.Has("wait")) wait = absl::Milliseconds(command.Get("wait", 0));
    return GetRequestEvent{command.Id(1), command.words.at(2), wait};
  }

  Event WorkerEvent(const std::string& name, const Command& command) {
    WorkerMessageEvent event;
    internal::v1::WorkerMessage& message = event.message;
    if (name == "register" || name == "ready" || name == "heartbeat") {
      session_ = event.session = command.Id(1);
      if (name == "register") {
        message.mutable_register_()->set_incarnation(command.words.at(2));
        FillRegister(command, *message.mutable_register_());
        connected_.insert(session_);
        incarnations_[session_] = command.words.at(2);
      }
      if (name == "ready") FillReady(command.options, *message.mutable_ready());
      if (name == "heartbeat") message.mutable_heartbeat();
      return event;
    }
    event.session = command.Get("session", session_);
    if (name == "store")
      message.mutable_store_opened()->set_address(command.words.at(1));
    else if (name == "vote")
      FillVote(command, *message.mutable_vote());
    else if (name == "applied") {
      *message.mutable_applied()->mutable_key() = KeyOf(command);
      message.mutable_applied()->set_weights_digest(DigestOf(command));
      if (command.Has("nonfinite")) message.mutable_applied()->set_nonfinite(command.options.at("nonfinite"));
      AddSpans(command.Get("spans", 0), *message.mutable_applied()->mutable_spans());
    } else if (name == "refused")
      *message.mutable_refused()->mutable_key() = KeyOf(command);
    else if (name == "result")
      FillResult(command, *message.mutable_results());
    else if (name == "log_prob_done")
      FillDone(command, *message.mutable_log_prob_done());
    else if (name == "verify_done")
      FillVerifyDone(command, *message.mutable_verify_done());
    else if (name == "staged")
      FillDone(command, *message.mutable_save_staged());
    else if (name == "saved") {
      FillDone(command, *message.mutable_save_done());
      message.mutable_save_done()->set_weights_digest(command.Text("weights"));
      message.mutable_save_done()->add_parts()->set_file("f");
    } else if (name == "export_done")
      FillDone(command, *message.mutable_export_done());
    else
      LOG(FATAL) << "unknown event " << name;
    return event;
  }

  // After a step the weights are told apart by its number, unless the line says otherwise.
  std::string DigestOf(const Command& command) const {
    return command.Has("weights") ? command.Text("weights") : absl::StrCat("w", KeyOf(command).step());
  }

  void FillVote(const Command& command, internal::v1::Vote& vote) {
    *vote.mutable_key() = KeyOf(command);
    vote.set_yes(command.words.at(1) != "no");
    vote.set_empty(command.words.at(1) == "empty");
    internal::v1::NoVoteReason reason = internal::v1::NO_VOTE_REASON_UNSPECIFIED;
    if (command.Has("reason")) CHECK(internal::v1::NoVoteReason_Parse(command.options.at("reason"), &reason));
    vote.set_no_reason(reason);
    double norm2 = 4;
    if (command.Has("norm2")) CHECK(absl::SimpleAtod(command.options.at("norm2"), &norm2));
    vote.set_grad_norm_squared(norm2);
    if (command.Has("rows")) vote.mutable_sums()->set_computed_rows(command.Get("rows", 0));
    AddSpans(command.Get("spans", 0), *vote.mutable_spans());
  }

  StepKey KeyOf(const Command& command) const {
    const auto sent = keys_.find(command.Get("session", session_));
    StepKey key = sent == keys_.end() ? key_ : sent->second;
    key.set_step(command.Get("step", key.step()));
    key.set_attempt(static_cast<uint32_t>(command.Get("attempt", key.attempt())));
    key.set_k(static_cast<uint32_t>(command.Get("k", key.k())));
    key.set_epoch(command.Get("epoch", key.epoch()));
    key.set_generation(command.Get("generation", key.generation()));
    if (command.Has("incarnation")) key.set_incarnation(command.options.at("incarnation"));
    if (command.Has("id")) key.set_request_id(command.options.at("id"));
    return key;
  }

  std::unique_ptr<CoordinatorState> state_;
  v1::Mesh mesh_;
  bool plans_held_ = false;
  bool replays_ = false, shows_rows_ = false, shows_incidents_ = false, shows_logs_ = false;
  std::map<PlanId, PlanAction> plans_;  // that were asked for
  internal::v1::JournalState journal_;  // the fold of all rows
  uint64_t num_rows_ = 0;
  // By name: the request, and the mesh that its plan was made for.
  std::map<std::string, std::pair<std::shared_ptr<const TrainingRequest>, v1::Mesh>> spool_;
  FakeCheckpoints checkpoints_;
  uint64_t every_steps_ = 0, every_minutes_ = 0;
  uint64_t requests_kept_ = 3;
  std::string resume_, dtype_, prefix_ = "L";
  std::optional<uint64_t> left_bytes_;  // on the journal's disk; nullopt: it does not say
  absl::Time now_ = absl::FromUnixSeconds(1000);
  absl::Time handled_at_ = absl::InfinitePast();  // of events that come while the server hangs
  StepKey key_;                                   // sent last
  std::map<SessionId, StepKey> keys_;             // sent last to each
  SessionId session_ = 0;
  std::set<SessionId> connected_;
  std::map<SessionId, std::string> incarnations_;
  uint64_t progress_ = 0;
};

}  // namespace

std::string RunScenario(const std::string& text) {
  Scenario scenario;
  std::string out = "\n";
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    if (line.empty() || line[0] != '>') continue;
    absl::StrAppend(&out, line, "\n");
    scenario.Run(Command(line.substr(1)), out);
  }
  return out;
}

}  // namespace stemma::server
