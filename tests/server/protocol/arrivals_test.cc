#include "server/protocol/arrivals.h"

#include "common/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stemma::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Time kNow = absl::UnixEpoch();

Arrival Update(const std::string& id, CallId call, bool validate_only = false) {
  auto request = std::make_shared<TrainingRequest>();
  request->update.mutable_request()->set_request_id(id);
  request->update.mutable_request()->set_validate_only(validate_only);
  request->bytes = 10;
  request->num_steps = 3;
  Arrival arrival;
  arrival.request = request;
  arrival.senders.push_back({.call = call});
  return arrival;
}

Arrival ExportArrival(const std::string& name, CallId call) {
  Arrival arrival;
  ExportJob job;
  job.request.set_name(name);
  arrival.work = job;
  arrival.senders.push_back({.call = call});
  return arrival;
}

Arrival LoadArrival(const std::string& name, CallId call) {
  Arrival arrival;
  LoadJob job;
  job.name = name;
  arrival.work = job;
  arrival.senders.push_back({.call = call});
  return arrival;
}

class ArrivalsTest : public ::testing::Test {
 protected:
  ArrivalsTest() { out_.Begin(kNow); }

  void Add(Arrival arrival) { arrivals_.Add(std::move(arrival), {config_, rates_}); }
  void Planned(PlanId id, absl::StatusOr<RequestPlan> plan = RequestPlan()) {
    arrivals_.OnPlanned({.id = id, .plan = std::make_shared<absl::StatusOr<RequestPlan>>(std::move(plan))}, "a-1");
  }
  // What was done since the last call, in short: "plan 1", "stop 1", "answer 5".
  std::vector<std::string> Done() {
    std::vector<std::string> done;
    for (const Action& action : out_.Take().actions) {
      if (const auto* plan = std::get_if<PlanAction>(&action)) done.push_back("plan " + std::to_string(plan->id));
      if (const auto* stop = std::get_if<StopPlanAction>(&action)) done.push_back("stop " + std::to_string(stop->id));
      if (const auto* reply = std::get_if<ReplyAction>(&action))
        done.push_back("answer " + std::to_string(reply->call));
    }
    return done;
  }
  std::string Next() {
    const std::optional<Arrival> next = arrivals_.TakeNext();
    if (!next) return "";
    return next->request == nullptr ? std::get<ExportJob>(next->work).request.name()
                                    : next->request->header().request_id();
  }

  Outbox out_;
  Arrivals arrivals_{&out_};
  v1::RunConfig config_;
  Rates rates_;
};

TEST_F(ArrivalsTest, AreAcceptedAsTheyCameWhateverIsPlannedFirst) {
  Add(Update("r", 1));
  Add(ExportArrival("x", 2));
  Add(Update("s", 3));
  EXPECT_THAT(Done(), ElementsAre("plan 1", "plan 2")) << "an export needs none";
  Planned(2);
  EXPECT_EQ(Next(), "") << "the first is being planned";
  Planned(1);
  EXPECT_EQ(Next(), "r");
  EXPECT_EQ(Next(), "x");
  EXPECT_EQ(Next(), "s");
  EXPECT_TRUE(arrivals_.empty());
  EXPECT_THAT(Done(), IsEmpty());
}

TEST_F(ArrivalsTest, OneThatOnlyAsksForItsPlanHoldsUpNobody) {
  Add(Update("asks", 1, /*validate_only=*/true));
  Add(Update("r", 2));
  Done();
  Planned(2);
  EXPECT_EQ(Next(), "r");
  Planned(1);
  EXPECT_THAT(Done(), ElementsAre("answer 1"));
  EXPECT_TRUE(arrivals_.empty());
}

// A full disk refuses them, whether or not a file keeps them.
TEST_F(ArrivalsTest, WhatIsAcceptedByItsPlanHasRows) {
  Add(Update("r", 1));
  Add(Update("v", 2, /*validate_only=*/true));
  std::vector<bool> writes_rows;
  for (const Action& action : out_.Take().actions) {
    writes_rows.push_back(std::get<PlanAction>(action).writes_rows);
    EXPECT_EQ(std::get<PlanAction>(action).spool_name, "");
  }
  EXPECT_THAT(writes_rows, ElementsAre(true, false));
}

TEST_F(ArrivalsTest, AnotherWorkerMakesEveryPlanAgain) {
  Add(Update("r", 1));
  Add(Update("s", 2));
  Planned(1);
  Done();
  arrivals_.Restart({config_, rates_});
  EXPECT_THAT(Done(), ElementsAre("plan 3", "stop 2", "plan 4")) << "the first one's was made already";
  Planned(1);
  EXPECT_EQ(Next(), "") << "a plan of the worker before";
  Planned(3);
  EXPECT_EQ(Next(), "r");
}

TEST_F(ArrivalsTest, TheFileOfAPlanThatIsMadeAgainGoes) {
  Add(Update("r", 1));
  internal::v1::SpoolFile file;
  file.set_name("of the first plan");
  arrivals_.OnPlanned({.id = 1, .plan = std::make_shared<absl::StatusOr<RequestPlan>>(RequestPlan()), .spool = file},
                      "a-1");
  out_.Take();
  arrivals_.Restart({config_, rates_});
  std::vector<std::string> removed;
  for (const Action& action : out_.Take().actions) {
    if (const auto* remove = std::get_if<RemoveSpoolAction>(&action)) removed.push_back(remove->name);
  }
  EXPECT_THAT(removed, ElementsAre("of the first plan"));
  arrivals_.Leave(1);
  for (const Action& action : out_.Take().actions) EXPECT_FALSE(std::holds_alternative<RemoveSpoolAction>(action));
}

TEST_F(ArrivalsTest, APlanIsStoppedWhenItsLastSenderLeaves) {
  Add(Update("r", 1));
  arrivals_.Find("r")->senders.push_back({.call = 2, .replayed = true});
  arrivals_.Watch(*arrivals_.Find("r"), {.call = 3});
  Done();
  arrivals_.Leave(1);
  EXPECT_THAT(Done(), IsEmpty());
  arrivals_.Leave(2);
  EXPECT_THAT(Done(), ElementsAre("stop 1", "answer 3"));
  EXPECT_EQ(arrivals_.Find("r"), nullptr);
  Add(ExportArrival("x", 4));
  arrivals_.Leave(4);
  EXPECT_TRUE(arrivals_.HasExport("x")) << "its files may be wanted";
  Add(LoadArrival("c", 5));
  arrivals_.Leave(5);
  EXPECT_FALSE(arrivals_.ReadsCheckpoint("c")) << "what others trained stays";
}

TEST_F(ArrivalsTest, AFailedPlanAnswersEveryCallAndFreesTheId) {
  Add(Update("r", 1));
  arrivals_.Watch(*arrivals_.Find("r"), {.call = 2});
  Done();
  Planned(1, MakeError(Reason::kGroupTooLarge, "x"));
  EXPECT_THAT(Done(), ElementsAre("answer 1", "answer 2"));
  EXPECT_EQ(arrivals_.Find("r"), nullptr);
}

TEST_F(ArrivalsTest, WatchersAreAnsweredAtTheirDeadline) {
  Add(Update("r", 1));
  Done();
  arrivals_.Watch(*arrivals_.Find("r"), {.call = 2, .deadline = kNow});
  EXPECT_THAT(Done(), ElementsAre("answer 2")) << "it does not wait";
  arrivals_.Watch(*arrivals_.Find("r"), {.call = 3, .deadline = kNow + absl::Seconds(5)});
  EXPECT_EQ(arrivals_.NextDeadline(), kNow + absl::Seconds(5));
  arrivals_.AnswerDueWatchers();
  EXPECT_THAT(Done(), IsEmpty());
  out_.Begin(kNow + absl::Seconds(5));
  arrivals_.AnswerDueWatchers();
  EXPECT_THAT(Done(), ElementsAre("answer 3"));
  EXPECT_EQ(arrivals_.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(ArrivalsTest, AreCountedWithTheirBytesAndSteps) {
  Add(Update("r", 1));
  Add(Update("asks", 2, /*validate_only=*/true));
  Add(ExportArrival("x", 3));
  EXPECT_EQ(arrivals_.size(), 3u);
  EXPECT_EQ(arrivals_.bytes(), 20u);
  EXPECT_EQ(arrivals_.num_steps(), 3u) << "one that only asks for its plan makes no step";
  Done();
  arrivals_.EndAll(absl::UnavailableError("x"));
  EXPECT_THAT(Done(), ElementsAre("stop 1", "answer 1", "stop 2", "answer 2", "answer 3"));
  EXPECT_TRUE(arrivals_.empty());
}

}  // namespace
}  // namespace stemma::server
