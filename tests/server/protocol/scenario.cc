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
#include "glog/logging.h"
#include "server/protocol/coordinator_state.h"
#include "tests/server/protocol/scenario_text.h"

namespace stemma::server {
namespace {

using internal::v1::StepKey;

uint64_t Number(const std::string& text) {
  uint64_t value = 0;
  CHECK(absl::SimpleAtoi(text, &value)) << text;
  return value;
}

// "submit 1 a steps=2 skip" -> words {submit, 1, a}, options {steps: 2, skip: ""}.
struct Command {
  explicit Command(const std::string& line) {
    for (const std::string& word : std::vector<std::string>(absl::StrSplit(line, ' ', absl::SkipEmpty()))) {
      const std::vector<std::string> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
      const bool flag = word == "skip" || word == "validate" || word == "pass" || word == "fail" || word == "exists" ||
                        word == "moving" || (word == "results" && !words.empty() && words[0] == "submit");
      if (parts.size() == 2)
        options[parts[0]] = parts[1];
      else if (flag)
        options[word] = "";
      else
        words.push_back(word);
    }
  }
  bool Has(const std::string& name) const { return options.contains(name); }
  uint64_t Get(const std::string& name, uint64_t otherwise) const {
    return Has(name) ? Number(options.at(name)) : otherwise;
  }
  std::string Text(const std::string& name) const { return Has(name) ? options.at(name) : ""; }
  uint64_t Id(size_t word) const { return Number(words.at(word)); }

  std::vector<std::string> words;
  std::map<std::string, std::string> options;
};

void FillReport(uint32_t k, uint64_t seconds, v1::StepReport& report) {
  const auto predicted = static_cast<double>(seconds);
  report.set_peak_bytes(10 * (k + 1));
  report.add_clusters()->mutable_seconds()->set_suffix(predicted);
  report.add_clusters()->mutable_seconds()->set_suffix(predicted / 2);
  report.mutable_seconds()->set_suffix(1.5 * predicted);
  report.mutable_seconds()->set_apply(predicted);
}

// One cluster that runs nothing of any group, or with several ranks one of each: rank r computes group r.
void AddClusters(uint32_t num_ranks, v1::StepPlan& step) {
  if (num_ranks == 1) {
    step.add_clusters();
    return;
  }
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    v1::Cluster& cluster = *step.add_clusters();
    cluster.set_dp_rank(rank);
    cluster.add_waves()->add_members()->set_group(rank);
  }
}

// K = ppo_epochs steps of two groups, each with numbers of its own, so that a number of another step shows: denominator
// 8 + k, prompt-mean weights 1 / (8 + k) and 1 / (4 + k), predicted bytes 10 (k + 1). The step numbered `seed` has
// nothing to run; ref WEIGHTS asks for the entry pass, whose row of the report predicts 999 bytes. Two clusters of
// which one is predicted to take ppo_mini_batch_size seconds in Phase B; so does APPLY. It was made for a
// budget of 500 bytes, of which it needs clip_ratio_c.
absl::StatusOr<RequestPlan> FakePlan(const TrainingRequest& request, uint32_t num_ranks) {
  RequestPlan result;
  const v1::UpdateHeader& header = request.update;
  result.report.set_budget_bytes(500);
  result.report.set_peak_bytes(static_cast<uint64_t>(header.loss().clip_ratio_c()));
  if (header.has_ref()) {
    result.plan.mutable_log_prob_pass()->add_clusters();
    result.report.add_steps()->set_peak_bytes(999);
  }
  for (uint32_t k = 0; k < std::max(1u, header.ppo_epochs()); ++k) {
    v1::StepPlan& step = *result.plan.add_steps();
    step.set_epoch(k);
    step.add_groups(0);
    step.add_groups(1);
    if (!header.has_seed() || header.seed() != k) AddClusters(num_ranks, step);
    FillReport(k, header.ppo_mini_batch_size(), *result.report.add_steps());
    result.steps.push_back(
        {.denominator = 8.0 + k, .rollout_weights = {1 / (8.0 + k), 1 / (4.0 + k)}, .total_tokens = 100});
    if (step.clusters().empty()) result.steps.back().empty = {.count = 2, .warnings = {"nothing has a gradient"}};
  }
  return result;
}

// A group of one rollout without a response: g with g/0.
v1::PromptGroup Group(const std::string& uid) {
  v1::PromptGroup group;
  group.set_uid(uid);
  group.add_rollouts()->set_rollout_id(uid + "/0");
  return group;
}

std::shared_ptr<const TrainingRequest> MakeUpdate(const Command& command) {
  auto request = std::make_shared<TrainingRequest>();
  v1::UpdateHeader& header = request->update;
  v1::RequestHeader& common = *header.mutable_request();
  common.set_request_id(command.words.at(2));
  if (command.Has("wait")) common.set_wait_ms(command.Get("wait", 0));
  if (command.Has("expect")) common.set_expected_step(command.Get("expect", 0));
  if (command.Has("lineage")) common.set_expected_lineage(command.options.at("lineage"));
  if (command.Has("skip")) common.set_on_nonfinite(v1::SKIP);
  common.set_validate_only(command.Has("validate"));
  header.set_ppo_epochs(static_cast<uint32_t>(command.Get("steps", 1)));
  request->num_steps = header.ppo_epochs();
  if (command.Has("slow")) header.set_ppo_mini_batch_size(command.Get("slow", 0));
  if (command.Has("needs")) header.mutable_loss()->set_clip_ratio_c(static_cast<double>(command.Get("needs", 0)));
  if (command.Has("empty")) header.set_seed(command.Get("empty", 0));
  if (command.Has("pass")) header.mutable_ref()->set_from(v1::LogProbSource::WEIGHTS);
  header.mutable_adam()->set_max_grad_norm(static_cast<double>(command.Get("max_norm", 0)));
  header.set_return_log_probs(command.Has("results"));
  if (command.Has("trace")) header.set_trace_step(static_cast<uint32_t>(command.Get("trace", 0)));
  request->groups = {Group("g"), Group("h")};
  request->num_rollouts = 2;
  request->bytes = command.Get("bytes", 10);
  request->digest = command.Has("payload") ? command.options.at("payload") : "p";
  return request;
}

class Scenario {
 public:
  Scenario() : state_(std::make_unique<CoordinatorState>(Options(1))) {}

  void Run(const Command& command, std::string& out) {
    const std::string& name = command.words.at(0);
    if (name == "hold") {
      plans_held_ = true;
      return;
    }
    if (name == "mesh") {  // first of all
      num_ranks_ = static_cast<uint32_t>(command.Get("dp", 1));
      state_ = std::make_unique<CoordinatorState>(Options(num_ranks_));
      return;
    }
    if (name == "asleep") {
      now_ += absl::Seconds(command.Id(1));
      return;
    }
    if (name == "advance") Advance(absl::Seconds(command.Id(1)), out);
    if (name == "beat") return Beat(command, out);
    Show(state_->Handle(now_, EventOf(name, command)), out);
  }

 private:
  // Ticks whenever the state wants one, as the coordinator's thread does.
  void Advance(absl::Duration duration, std::string& out) {
    const absl::Time end = now_ + duration;
    for (absl::Time next = state_->NextDeadline(); next < end; next = state_->NextDeadline()) {
      now_ = std::max(now_, next);  // after a sleep a deadline may be past
      Show(state_->Handle(now_, TickEvent{}), out);
    }
    now_ = end;
  }

  // A heartbeat at the end of every second, of the worker that was named last or, in a mesh, of each one that is
  // connected: engines that stand still, or of which one moves.
  void Beat(const Command& command, std::string& out) {
    for (uint64_t second = 0; second < command.Id(1); ++second) {
      Advance(absl::Seconds(1), out);
      if (command.Has("moving")) ++progress_;
      const std::set<SessionId> sessions = num_ranks_ == 1 ? std::set<SessionId>{session_} : connected_;
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
    for (const Action& action : decision.actions) {
      if (const auto* plan = std::get_if<PlanAction>(&action)) {
        requests_[plan->id] = plan->request;
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
      absl::StrAppend(&out, ActionText(action), "\n");
    }
    if (decision.reason.find("ignored: ") != std::string::npos) absl::StrAppend(&out, "ignored\n");
    for (const PlannedEvent& event : planned) Show(state_->Handle(now_, event), out);
  }

  // A step's messages to a worker carry its own incarnation.
  bool IsForAnother(const SendAction& send) const {
    const internal::v1::ServerMessage& message = send.message;
    const std::string& own = incarnations_.at(send.session);
    return (message.has_prepare() && message.prepare().key().incarnation() != own) ||
           (message.has_apply() && message.apply().key().incarnation() != own);
  }

  PlannedEvent Planned(PlanId id, bool fail) const {
    absl::StatusOr<RequestPlan> plan = FakePlan(*requests_.at(id), num_ranks_);
    if (fail) plan = MakeError(Reason::kGroupTooLarge, "x");
    return {.id = id, .plan = std::make_shared<absl::StatusOr<RequestPlan>>(std::move(plan))};
  }

  static CoordinatorOptions Options(uint32_t num_ranks) {
    CoordinatorOptions options;
    options.config.mutable_mesh()->set_dp(num_ranks);
    options.epoch = 9;
    options.lineage_prefix = "L";
    options.data_directory = "data";
    options.worker_lost_after = absl::Seconds(5);
    options.worker_stalled_after = absl::Seconds(30);
    options.worker_return_within = absl::Seconds(60);
    v1::Limits& limits = *options.config.mutable_limits();
    limits.set_requests_in_flight(3);
    limits.set_request_bytes_in_flight(100);
    limits.set_requests_kept(3);
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
    if (name == "export") return MakeExport(command);
    if (name == "get") return MakeGet(command);
    if (name == "cancel") return CancelEvent{command.Id(1), command.words.at(2)};
    if (name == "results") return ReadResultsEvent{command.Id(1), command.words.at(2)};
    if (name == "list") return ListRequestsEvent{command.Id(1)};
    if (name == "model") return GetModelEvent{command.Id(1)};
    if (name == "gone") return CallGoneEvent{command.Id(1)};
    if (name == "planned") return Planned(command.Id(1), command.Has("fail"));
    return WorkerEvent(name, command);
  }

  static std::shared_ptr<const TrainingRequest> MakeLogProb(const Command& command) {
    auto request = std::make_shared<TrainingRequest>();
    v1::RequestHeader& header = *request->log_prob.mutable_request();
    if (command.Has("expect")) header.set_expected_step(command.Get("expect", 0));
    if (command.Has("lineage")) header.set_expected_lineage(command.options.at("lineage"));
    request->kind = TrainingRequest::Kind::kLogProb;
    request->groups = {Group("g"), Group("h")};
    request->bytes = 10;
    return request;
  }

  static Event MakeExport(const Command& command) {
    v1::ExportWeightsRequest request;
    request.set_name(command.words.at(2));
    if (command.Has("lineage")) request.set_expected_lineage(command.options.at("lineage"));
    return ExportEvent{command.Id(1), request};
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
      if (name == "ready") message.mutable_ready()->set_model_digest(command.Text("weights"));
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
      if (command.Has("nonfinite")) message.mutable_applied()->set_nonfinite(command.options.at("nonfinite"));
      AddSpans(command.Get("spans", 0), *message.mutable_applied()->mutable_spans());
    } else if (name == "refused")
      *message.mutable_refused()->mutable_key() = KeyOf(command);
    else if (name == "result")
      FillResult(command, *message.mutable_results());
    else if (name == "log_prob_done")
      FillDone(command, *message.mutable_log_prob_done());
    else if (name == "export_done")
      FillDone(command, *message.mutable_export_done());
    else
      LOG(FATAL) << "unknown event " << name;
    return event;
  }

  static void FillRegister(const Command& command, internal::v1::Register& message) {
    message.set_memory_free_bytes(command.Get("free", 1000));
    message.set_host(command.Text("host"));
    message.set_device(command.Text("device"));
    message.set_version(command.Text("version"));
    message.set_address(command.Text("address"));
    message.set_cores(static_cast<uint32_t>(command.Get("cores", 0)));
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
    AddSpans(command.Get("spans", 0), *vote.mutable_spans());
  }

  static void FillResult(const Command& command, internal::v1::ResultChunk& chunk) {
    chunk.set_id(command.words.at(1));
    chunk.mutable_group()->set_uid(command.words.at(2));
    chunk.mutable_group()->set_dtype(v1::FLOAT32);
    chunk.mutable_group()->add_rollouts()->set_rollout_id(command.words.at(2) + "/0");
  }

  template <typename Done>
  static void FillDone(const Command& command, Done& done) {
    done.set_id(command.words.at(1));
    if (command.Has("fail")) *done.mutable_failure() = ToFailure(MakeError(Reason::kInternal, "x"));
    if (command.Has("exists")) *done.mutable_failure() = ToFailure(absl::AlreadyExistsError("x"));
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
  uint32_t num_ranks_ = 1;
  bool plans_held_ = false;
  std::map<PlanId, std::shared_ptr<const TrainingRequest>> requests_;  // of the plans that were asked for
  absl::Time now_ = absl::FromUnixSeconds(1000);
  StepKey key_;                        // sent last
  std::map<SessionId, StepKey> keys_;  // sent last to each
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
