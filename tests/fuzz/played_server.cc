#include "tests/fuzz/played_server.h"

#include <deque>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "server/protocol/coordinator_state.h"
#include "server/protocol/journal_checks.h"
#include "server/protocol/journal_fold.h"
#include "tests/server/protocol/scenario_plans.h"

namespace stemma::server {
namespace {

using internal::v1::JournalRow;
using internal::v1::JournalState;
using internal::v1::WorkerMessage;

constexpr int kEventsMax = 300;
constexpr SessionId kSession = 1;

CoordinatorOptions OptionsOf(const PlayedLife& life) {
  CoordinatorOptions options;
  options.config.mutable_mesh()->set_dp(1);
  options.config.set_durability(life.replays ? v1::REPLAY : v1::REWIND);
  options.epoch = life.journal.epoch() + 1;
  options.journal = life.journal;
  options.lineage_prefix = absl::StrCat("L", options.epoch);
  options.data_directory = "data";
  v1::Limits& limits = *options.config.mutable_limits();
  limits.set_requests_in_flight(8);
  limits.set_request_bytes_in_flight(1000);
  limits.set_requests_kept(kPlayedRequestsKept);
  return options;
}

class Life {
 public:
  explicit Life(const PlayedLife& life) : life_(life), state_(OptionsOf(life)), journal_(life.journal) {}

  std::vector<JournalRow> Live() {
    events_.emplace_back(StartEvent{});
    AskAboutAll();
    Say([](WorkerMessage& message) {
      message.mutable_register_()->set_incarnation("i");
      message.mutable_register_()->set_memory_free_bytes(1000);
    });
    Run();
    for (const char* id : {"new", "next"}) {
      events_.emplace_back(
          SubmitEvent{NextCall(), MakeUpdate(Command(absl::StrCat("submit 1 ", id, " steps=", life_.steps)))});
    }
    Run();
    AskAboutAll();
    for (int i = 0; i < life_.journal.requests_size(); ++i) {
      events_.emplace_back(CancelEvent{NextCall(), life_.journal.requests(i).request_id()});
    }
    events_.emplace_back(WorkerLostEvent{kSession, "it died"});
    events_.emplace_back(TickEvent{});
    events_.emplace_back(DrainEvent{absl::Seconds(1)});
    Run();
    return std::move(rows_);
  }

 private:
  CallId NextCall() { return ++last_call_; }

  void AskAboutAll() {
    events_.emplace_back(ListRequestsEvent{NextCall()});
    events_.emplace_back(GetModelEvent{NextCall()});
    events_.emplace_back(GetServerInfoEvent{NextCall()});
    for (const auto& request : life_.journal.requests()) {
      events_.emplace_back(GetRequestEvent{NextCall(), request.request_id(), std::nullopt});
      events_.emplace_back(ReadResultsEvent{NextCall(), request.request_id()});
      auto again = std::make_shared<TrainingRequest>(*MakeUpdate(Command("submit 1 x")));
      again->update.mutable_request()->set_request_id(request.request_id());
      again->digest = request.digest();
      events_.emplace_back(SubmitEvent{NextCall(), std::move(again)});
    }
    for (const std::string& id : life_.journal.expired_ids()) {
      events_.emplace_back(GetRequestEvent{NextCall(), id, absl::Seconds(1)});
    }
  }

  template <typename Fill>
  void Say(const Fill& fill) {
    WorkerMessageEvent event = {.session = kSession, .message = {}};
    fill(event.message);
    events_.push_back(std::move(event));
  }

  void Run() {
    for (; !events_.empty() && left_ > 0; --left_) {
      const Event event = std::move(events_.front());
      events_.pop_front();
      now_ += absl::Milliseconds(1);
      const Decision decision = state_.Handle(now_, event);
      for (const Action& action : decision.actions) {
        std::visit([this](const auto& a) { On(a); }, action);
      }
    }
    events_.clear();
  }

  void On(const JournalAction& action) {
    JournalRow row;
    CHECK(row.ParseFromString(action.body));
    absl::Status folded = FoldRow(row, kPlayedRequestsKept, journal_);
    folded.Update(CheckJournalState(journal_));  // the server may end behind any row
    CHECK(folded.ok()) << folded;
    rows_.push_back(std::move(row));
  }

  void On(const PlanAction& action) {
    PlannedEvent event = {.id = action.id,
                          .plan = std::make_shared<absl::StatusOr<RequestPlan>>(FakePlan(*action.request, 1))};
    if (!action.spool_name.empty()) event.spool.emplace().set_name(action.spool_name);
    events_.emplace_front(std::move(event));
  }

  void On(const LoadAction& action) {
    auto loaded = std::make_shared<absl::StatusOr<LoadedRequest>>(absl::DataLossError("damaged"));
    if (life_.reads_spool) {
      const auto request = MakeUpdate(Command(absl::StrCat("submit 1 kept steps=", life_.steps)));
      *loaded = LoadedRequest{request, *FakePlan(*request, 1), {}};
    }
    events_.emplace_front(LoadedEvent{.id = action.id, .loaded = std::move(loaded)});
  }

  void On(const SendAction& action) {
    const internal::v1::ServerMessage& asked = action.message;
    if (asked.has_configure()) {
      Say([&](WorkerMessage& message) { message.mutable_ready()->set_model_digest(life_.weights); });
    }
    if (asked.has_prepare()) {
      Say([&](WorkerMessage& message) {
        *message.mutable_vote()->mutable_key() = asked.prepare().key();
        message.mutable_vote()->set_yes(true);
        message.mutable_vote()->set_grad_norm_squared(4);
      });
    }
    if (asked.has_apply()) {
      Say([&](WorkerMessage& message) {
        *message.mutable_applied()->mutable_key() = asked.apply().key();
        message.mutable_applied()->set_weights_digest(absl::StrCat(life_.weights, asked.apply().key().step()));
      });
    }
  }

  template <typename Other>
  void On(const Other&) {}

  const PlayedLife life_;
  CoordinatorState state_;
  JournalState journal_;  // the fold of all rows
  std::vector<JournalRow> rows_;
  std::deque<Event> events_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  CallId last_call_ = 0;
  int left_ = kEventsMax;
};

}  // namespace

std::vector<JournalRow> Play(const PlayedLife& life) {
  std::vector<JournalRow> rows = Life(life).Live();
  if (!life.snapshots) return rows;
  JournalState state = life.journal;
  for (const JournalRow& row : rows) CHECK(FoldRow(row, kPlayedRequestsKept, state).ok());
  *rows.emplace_back().mutable_snapshot() = std::move(state);
  return rows;
}

}  // namespace stemma::server
