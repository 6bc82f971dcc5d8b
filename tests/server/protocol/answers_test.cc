// What a client or an operator is told where a scenario does not show it: bytes, links, phases, plans and limits.
#include "server/protocol/answers.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/mesh.h"
#include "common/base/message_sizes.h"
#include "gtest/gtest.h"
#include "server/protocol/coordinator_state.h"
#include "server/protocol/jobs.h"
#include "tests/server/protocol/link_info.h"
#include "tests/server/protocol/scenario_plans.h"

namespace stemma::server {
namespace {

CoordinatorOptions AnsweringOptions(uint32_t copies) {
  CoordinatorOptions options;
  options.lineage_prefix = "L";
  *options.config.mutable_mesh() = MakeMesh({.dp = copies});
  v1::Limits& limits = *options.config.mutable_limits();
  limits.set_requests_in_flight(8);
  limits.set_request_bytes_in_flight(1000);
  limits.set_requests_kept(4);
  return options;
}

class AnswersTest : public ::testing::Test {
 protected:
  void Begin(CoordinatorOptions options) {
    state_ = std::make_unique<CoordinatorState>(std::move(options));
    Handle(StartEvent{});
  }

  void Register(SessionId session, const std::string& device) {
    WorkerMessageEvent event = {.session = session, .message = {}};
    event.message.mutable_register_()->set_incarnation("w" + std::to_string(session));
    event.message.mutable_register_()->set_memory_free_bytes(1000);
    event.message.mutable_register_()->set_host("h");
    event.message.mutable_register_()->set_pid(static_cast<uint32_t>(10 * session));
    event.message.mutable_register_()->set_device(device);
    Handle(event);
  }

  void Ready(SessionId session, const std::vector<v1::LinkInfo>& links = {}) {
    WorkerMessageEvent event = {.session = session, .message = {}};
    event.message.mutable_ready()->mutable_links()->Add(links.begin(), links.end());
    Handle(event);
  }

  void Phase(SessionId session, const std::string& phase) {
    WorkerMessageEvent event = {.session = session, .message = {}};
    event.message.mutable_heartbeat()->set_phase(phase);
    Handle(event);
  }

  void Serve() {
    Begin(AnsweringOptions(1));
    Register(1, "cpu");
    Ready(1);
  }

  // A plan that is asked for is made at once, and says `clusters` of its step.
  std::vector<Action> Submit(const std::string& id, int clusters) {
    const std::vector<Action> actions = Handle(SubmitEvent{++call_, MakeUpdate(Command("submit 0 " + id))});
    const auto& plan = std::get<PlanAction>(actions.at(0));
    absl::StatusOr<RequestPlan> made = FakePlan(*plan.request, 1);
    for (int i = 0; i < clusters; ++i) made->report.mutable_steps(0)->add_clusters()->mutable_seconds()->set_suffix(1);
    report_bytes_ = made->report.ByteSizeLong();
    return Handle(PlannedEvent{.id = plan.id, .plan = std::make_shared<absl::StatusOr<RequestPlan>>(std::move(made))});
  }

  std::vector<Action> Handle(const Event& event) { return state_->Handle(absl::FromUnixSeconds(1000), event).actions; }

  template <typename Answer>
  Answer AnswerTo(const Event& event) {
    for (const Action& action : Handle(event)) {
      const auto* reply = std::get_if<ReplyAction>(&action);
      if (reply != nullptr) return std::get<Answer>(reply->reply);
    }
    ADD_FAILURE() << "no answer";
    return Answer();
  }

  std::unique_ptr<CoordinatorState> state_;
  CallId call_ = 100;
  size_t report_bytes_ = 0;
};

TEST_F(AnswersTest, AnExportHasTheBytesThatItsRanksWrote) {
  Begin(AnsweringOptions(2));
  Register(1, "cpu:0");
  Register(2, "cpu:1");
  WorkerMessageEvent store = {.session = 1, .message = {}};
  store.message.mutable_store_opened()->set_address("a:1");
  Handle(store);
  Ready(1);
  Ready(2);
  ExportEvent event = {.call = 10, .request = {}};
  event.request.set_name("x");
  Handle(event);
  WorkerMessageEvent done = {.session = 1, .message = {}};
  done.message.mutable_export_done()->set_id("~export/1");
  done.message.mutable_export_done()->set_bytes(7);
  Handle(done);
  done.session = 2;
  done.message.mutable_export_done()->set_bytes(5);
  EXPECT_EQ(AnswerTo<v1::ExportWeightsResponse>(done).bytes(), 12u);
}

TEST_F(AnswersTest, LinksAreToldOnceAllRanksHaveMeasuredThem) {
  Begin(AnsweringOptions(2));
  Register(1, "cpu:0");
  Register(2, "cpu:1");
  WorkerMessageEvent store = {.session = 1, .message = {}};
  store.message.mutable_store_opened()->set_address("a:1");
  Handle(store);
  Ready(1, {testing::Link("dp", 2, 1e-5, 1e-9)});
  EXPECT_EQ(AnswerTo<v1::ServerInfo>(GetServerInfoEvent{10}).links_size(), 0) << "the other rank's may be slower";
  Ready(2, {testing::Link("dp", 2, 1e-5, 1e-9)});
  EXPECT_EQ(AnswerTo<v1::ServerInfo>(GetServerInfoEvent{11}).links_size(), 1);
}

TEST_F(AnswersTest, ARankIsFoundByHostAndProcess) {
  Begin(AnsweringOptions(2));
  Register(1, "cpu:0");
  Register(2, "cpu:1");
  const auto info = AnswerTo<v1::ServerInfo>(GetServerInfoEvent{10});
  EXPECT_EQ(info.workers_connected(), 2u);
  EXPECT_EQ(info.generation(), 1u);
  ASSERT_EQ(info.ranks_size(), 2);
  EXPECT_EQ(info.ranks(1).host(), "h");
  EXPECT_EQ(info.ranks(1).pid(), 20u);
}

TEST_F(AnswersTest, AModelIsToldWithItsSizes) {
  CoordinatorOptions options = AnsweringOptions(1);
  options.model = {.model_type = "llama", .vocab_size = 512};
  options.model.hidden_size = 64;
  options.model.max_positions = 4096;
  Begin(options);
  const auto model = AnswerTo<v1::ModelInfo>(GetModelEvent{10});
  EXPECT_EQ(model.model_type(), "llama");
  EXPECT_EQ(model.vocab_size(), 512u);
  EXPECT_EQ(model.max_positions(), 4096u);
  EXPECT_EQ(model.num_parameters(), options.model.num_parameters());
  EXPECT_GT(model.num_parameters(), 0u);
}

TEST_F(AnswersTest, AnExportIsWrittenInTheDtypeThatWasAsked) {
  Serve();
  ExportEvent event = {.call = 10, .request = {}};
  event.request.set_name("x");
  event.request.set_dtype("bf16");
  std::string dtype;
  for (const Action& action : Handle(event)) {
    const auto* send = std::get_if<SendAction>(&action);
    if (send != nullptr && send->message.has_export_()) dtype = send->message.export_().dtype();
  }
  EXPECT_EQ(dtype, "bfloat16");
  WorkerMessageEvent done = {.session = 1, .message = {}};
  done.message.mutable_export_done()->set_id("~export/1");
  EXPECT_EQ(AnswerTo<v1::ExportWeightsResponse>(done).weight_version(), 1u);
}

// As the server before answered it; one that may be sent again is not answered with it.
TEST_F(AnswersTest, AFailureIsTheSameAfterARestart) {
  for (const bool resumable : {false, true}) {
    CoordinatorOptions options = AnsweringOptions(1);
    options.journal.set_lineage("L-1");
    internal::v1::KnownRequest& known = *options.journal.add_requests();
    known.set_request_id("a");
    known.set_digest("p");
    known.set_lineage("L-1");
    known.mutable_status()->set_state(v1::FAILED);
    *known.mutable_status()->mutable_failure() = ToFailure(MakeError(Reason::kNonfiniteGradient, "x"));
    known.set_resumable(resumable);
    Begin(options);
    const SubmitEvent repeat = {10, MakeUpdate(Command("submit 10 a"))};
    EXPECT_EQ(ErrorReason(AnswerTo<absl::Status>(repeat)), resumable ? "STARTING" : "NONFINITE_GRADIENT");
  }
}

// Returns the result that a request begins with, from the row of its acceptance.
v1::UpdateResult BegunIn(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    const auto* row = std::get_if<JournalAction>(&action);
    internal::v1::JournalRow read;
    if (row != nullptr && read.ParseFromString(row->body) && read.has_accepted()) return read.accepted().begun();
  }
  ADD_FAILURE() << "no row";
  return {};
}

TEST_F(AnswersTest, AShortLastMiniBatchIsWarnedOf) {
  Serve();
  const v1::UpdateResult begun = BegunIn(Submit("a slow=5", 0));
  ASSERT_EQ(begun.warnings_size(), 1);
  EXPECT_EQ(begun.warnings(0), "the last mini-batch of an epoch has 2 groups instead of 5");
}

TEST_F(AnswersTest, AResultSaysWhatARequestLeftToTheServer) {
  CoordinatorOptions options = AnsweringOptions(1);
  options.config.set_schedule(v1::DENSE);
  Begin(std::move(options));
  Register(1, "cpu");
  Ready(1);
  v1::UpdateHeader left = BegunIn(Submit("a", 0)).effective();
  EXPECT_EQ(left.request().on_nonfinite(), v1::ABORT);
  EXPECT_EQ(left.request().schedule(), v1::DENSE);
  EXPECT_EQ(left.ppo_mini_batch_size(), 2u) << "all groups";
  EXPECT_EQ(left.ppo_epochs(), 1u);
  const v1::UpdateHeader said = BegunIn(Submit("b skip slow=1 schedule=reuse steps=3", 0)).effective();
  EXPECT_EQ(said.request().on_nonfinite(), v1::SKIP);
  EXPECT_EQ(said.request().schedule(), v1::REUSE);
  EXPECT_EQ(said.ppo_mini_batch_size(), 1u);
  EXPECT_EQ(said.ppo_epochs(), 3u);
}

TEST_F(AnswersTest, AWorkerThatLoadsIsNotIdle) {
  Begin(AnsweringOptions(1));
  Register(1, "cpu");
  Phase(1, "loading");
  EXPECT_EQ(AnswerTo<v1::ServerInfo>(GetServerInfoEvent{10}).ranks(0).phase(), "loading");
  Ready(1);
  EXPECT_EQ(AnswerTo<v1::ServerInfo>(GetServerInfoEvent{11}).ranks(0).phase(), "idle");
}

TEST_F(AnswersTest, AServerWhoseJournalKnowsAModelRecovers) {
  CoordinatorOptions options = AnsweringOptions(1);
  Begin(options);
  EXPECT_EQ(AnswerTo<v1::ModelInfo>(GetModelEvent{10}).state(), v1::ModelInfo::LOADING);
  options.journal.set_lineage("L-1");
  options.journal.set_model_digest("m");
  Begin(options);
  EXPECT_EQ(AnswerTo<v1::ModelInfo>(GetModelEvent{10}).state(), v1::ModelInfo::RECOVERING);
}

// Also of those that wait behind one that ended, and of that.
TEST_F(AnswersTest, AListTellsOfEachWhatIsToldOfItAlone) {
  CoordinatorOptions options = AnsweringOptions(1);
  options.journal.set_lineage("L-1");
  options.config.set_durability(v1::REPLAY);
  const std::vector<std::string> ids = {"a", "b", "ended", "c", "d"};
  for (const std::string& id : ids) {
    internal::v1::KnownRequest& known = *options.journal.add_requests();
    known.set_request_id(id);
    known.set_lineage("L-1");
    known.mutable_status()->set_request_id(id);
    known.mutable_status()->set_state(id == "ended" ? v1::CANCELLED : v1::ACCEPTED);
    if (id == "ended") continue;
    internal::v1::KeptRequest& kept = *options.journal.add_kept();
    kept.set_request_id(id);
    kept.set_open(true);
    kept.mutable_spool()->set_name("spool-" + id);
  }
  Begin(options);
  Handle(CancelEvent{10, "b"});
  const auto list = AnswerTo<v1::ListRequestsResponse>(ListRequestsEvent{11});
  ASSERT_EQ(list.requests_size(), 5);
  std::vector<uint32_t> places;
  for (const v1::RequestStatus& listed : list.requests()) {
    places.push_back(listed.queue_position());
    const auto alone = AnswerTo<v1::RequestStatus>(GetRequestEvent{12, listed.request_id(), {}});
    EXPECT_EQ(listed.SerializeAsString(), alone.SerializeAsString()) << listed.request_id();
  }
  EXPECT_EQ(places, (std::vector<uint32_t>{1, 0, 0, 2, 3}));
}

// A journal may say anything that its checks let pass.
TEST_F(AnswersTest, ARequestWithMoreStepsThanItsTotalAddsNone) {
  CoordinatorOptions options = AnsweringOptions(1);
  options.journal.set_lineage("L-1");
  internal::v1::KnownRequest& known = *options.journal.add_requests();
  known.set_request_id("a");
  known.set_lineage("L-1");
  known.mutable_status()->set_state(v1::APPLIED);
  known.mutable_status()->set_steps_total(1);
  for (int i = 0; i < 3; ++i) known.mutable_result()->add_steps();
  internal::v1::KeptRequest& kept = *options.journal.add_kept();
  kept.set_request_id("a");
  kept.set_open(true);
  kept.mutable_spool()->set_name("spool-a");
  options.config.set_durability(v1::REPLAY);
  Begin(options);
  const SubmitEvent next = {10, MakeUpdate(Command("submit 10 b expect=0"))};
  EXPECT_NE(ErrorReason(AnswerTo<absl::Status>(next)), "STEP_MISMATCH");
}

TEST_F(AnswersTest, ALargeReportOfAPlanIsNotInTheJournal) {
  Serve();
  const auto has_plan = [this](const std::string& id, int clusters) {
    const v1::UpdateResult begun = BegunIn(Submit(id, clusters));
    EXPECT_EQ(begun.lineage(), "L-1");
    return begun.has_plan();
  };
  EXPECT_TRUE(has_plan("a", 1000));
  EXPECT_LT(report_bytes_, 64u << 10);
  EXPECT_FALSE(has_plan("b", 20'000));
  EXPECT_GT(report_bytes_, 64u << 10);
}

TEST_F(AnswersTest, AnIncidentsPlanIsShortenedWhereItIsLong) {
  for (const bool is_long : {false, true}) {
    Serve();
    Submit("a", is_long ? 300'000 : 1000);
    EXPECT_EQ(report_bytes_ > 1u << 20, is_long) << report_bytes_;
    int incidents = 0;
    for (const Action& action : Handle(WorkerLostEvent{1, "it died"})) {
      const auto* incident = std::get_if<IncidentAction>(&action);
      if (incident == nullptr) continue;
      ++incidents;
      ASSERT_TRUE(incident->incident.job && incident->incident.job->plan);
      const v1::PlanReport& plan = *incident->incident.job->plan;
      ASSERT_EQ(plan.steps_size(), 1);
      EXPECT_EQ(plan.steps(0).peak_bytes(), 10u) << "the step's own numbers stay";
      EXPECT_EQ(plan.steps(0).clusters_size() == 0, is_long);
    }
    EXPECT_EQ(incidents, 1);
  }
}

// They would have the place of others that can be read.
TEST_F(AnswersTest, LogProbsOfARequestThatIsRolledBackAreHeldNoMore) {
  Serve();
  WorkerMessageEvent vote = {.session = 1, .message = {}}, applied = vote;
  for (const Action& action : Submit("a results", 0)) {
    const auto* send = std::get_if<SendAction>(&action);
    if (send == nullptr || !send->message.has_prepare()) continue;
    *vote.message.mutable_vote()->mutable_key() = send->message.prepare().key();
    *applied.message.mutable_applied()->mutable_key() = send->message.prepare().key();
  }
  for (const std::string uid : {"g", "h"}) {
    WorkerMessageEvent result = {.session = 1, .message = {}};
    result.message.mutable_results()->set_id("a");
    result.message.mutable_results()->mutable_group()->set_uid(uid);
    result.message.mutable_results()->mutable_group()->set_dtype(v1::FLOAT32);
    result.message.mutable_results()->mutable_group()->add_rollouts()->set_rollout_id(uid + "/0");
    Handle(result);
  }
  vote.message.mutable_vote()->set_yes(true);
  Handle(vote);
  Handle(applied);
  std::shared_ptr<const v1::GroupResult> held;
  for (const Action& action : Handle(ReadResultsEvent{11, "a"})) {
    if (const auto* chunk = std::get_if<ChunkAction>(&action)) held = chunk->chunk;
  }
  ASSERT_NE(held, nullptr);
  EXPECT_GT(held.use_count(), 1);
  Handle(WorkerLostEvent{1, "it died"});
  EXPECT_EQ(held.use_count(), 1);
}

TEST(AnswerChecksTest, ClientStateIsKeptUpToItsLimit) {
  v1::SaveCheckpointRequest request;
  request.set_client_state(std::string(kClientStateBytesMax, 'x'));
  EXPECT_TRUE(CheckSaveRequest(request).ok());
  request.mutable_client_state()->push_back('x');
  EXPECT_EQ(GetErrorDetails(CheckSaveRequest(request)).violations.at(0).field, "client_state");
}

TEST(AnswerChecksTest, AnExportThatExistsIsToldWithItsPath) {
  const ErrorDetails details = GetErrorDetails(ExportExistsError("data/exports/x", {{"pending", "true"}}));
  EXPECT_EQ(details.metadata.at("name"), "x");
  EXPECT_EQ(details.metadata.at("path"), "data/exports/x");
  EXPECT_EQ(details.metadata.at("pending"), "true");
}

TEST(AnswerChecksTest, ALargeRequestIsTakenWhereNoOtherWaits) {
  v1::Limits limits;
  limits.set_requests_in_flight(2);
  limits.set_request_bytes_in_flight(100);
  EXPECT_TRUE(CheckQueue(limits, /*jobs=*/1, /*queued_bytes=*/0, /*bytes=*/101).ok()) << "it would never be taken";
  EXPECT_FALSE(CheckQueue(limits, 1, 1, 100).ok());
  EXPECT_TRUE(CheckQueue(limits, 1, 1, 99).ok());
}

// As milliseconds of 64 bits with a sign it would have ended long ago.
TEST(AnswerChecksTest, ALongWaitIsLong) {
  v1::RequestHeader header;
  EXPECT_EQ(WaitOf(header), absl::InfiniteDuration());
  header.set_wait_ms(1500);
  EXPECT_EQ(WaitOf(header), absl::Milliseconds(1500));
  header.set_wait_ms(UINT64_MAX);
  EXPECT_GT(WaitOf(header), absl::Hours(24 * 365));
}

}  // namespace
}  // namespace stemma::server
