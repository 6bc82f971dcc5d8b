// The thread around the state machine: events from many threads, a worker that answers from its own. Meant for TSan.
#include "server/coordinator/coordinator.h"

#include <atomic>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/coordinator/echo_worker.h"
#include "tests/server/coordinator/still_clock.h"

namespace stemma::server {
namespace {

// A plan of id "slow..." is not ready before the gate opens, or nobody waits for it; one of id "huge..." needs more
// memory than there is.
class Gate {
 public:
  absl::StatusOr<RequestPlan> Plan(const TrainingRequest& request, const StopCheck& stop) {
    const std::string& id = request.header().request_id();
    if (absl::StartsWith(id, "huge")) throw std::bad_alloc();
    if (absl::StartsWith(id, "slow")) {
      ++waiting_;
      while (!open_ && !stop()) RealClock().Sleep(absl::Milliseconds(1));
      --waiting_;
      if (stop()) return absl::CancelledError("stopped");
    }
    return OneStepPlan(request, {}, {}, stop);
  }
  void Open() { open_ = true; }
  void AwaitWaiting(int count) {
    while (waiting_ != count) RealClock().Sleep(absl::Milliseconds(1));
  }

 private:
  std::atomic<bool> open_ = false;
  std::atomic<int> waiting_ = 0;
};

CoordinatorOptions Options() {
  CoordinatorOptions options;
  options.lineage_prefix = "L";
  v1::Limits& limits = *options.config.mutable_limits();
  limits.set_requests_in_flight(1000);
  limits.set_request_bytes_in_flight(1 << 20);
  limits.set_requests_kept(1000);
  return options;
}

// Calls again as soon as it is answered, from the coordinator's thread: the queue is never empty before its turns are
// over. Each turn takes some time, and may say what else comes with it.
class Flood final : public std::enable_shared_from_this<Flood> {
 public:
  Flood(Coordinator& coordinator, StillClock& clock, absl::Duration turn, std::function<bool()> enough)
      : coordinator_(coordinator), clock_(clock), turn_(turn), enough_(std::move(enough)) {}

  void Next() {
    coordinator_.Call(std::make_shared<Turn>(shared_from_this()), [](CallId call) { return GetModelEvent{call}; });
  }
  int Wait() {  // the turns until there was enough, at most 1000
    CHECK(over_.AwaitWithin(kPatience)) << "the flood does not end";
    return turns_;
  }

 private:
  struct Turn final : public ClientCall {
    explicit Turn(std::shared_ptr<Flood> flood) : flood_(std::move(flood)) {}
    void OnChunk(std::shared_ptr<const v1::GroupResult>) override {}
    void OnReply(Reply) override { flood_->Answered(); }
    std::shared_ptr<Flood> flood_;
  };
  void Answered() {
    clock_.Advance(turn_);
    if (over_.is_set()) return;
    if (enough_() || ++turns_ == 1000) return over_.Set();
    Next();
  }

  Coordinator& coordinator_;
  StillClock& clock_;
  const absl::Duration turn_;
  const std::function<bool()> enough_;
  int turns_ = 0;
  Flag over_;
};

class CoordinatorTest : public ::testing::Test {
 protected:
  explicit CoordinatorTest(const Clock& clock = RealClock())
      : coordinator_(
            Options(),
            [this](const TrainingRequest& request, const v1::RunConfig&, const Rates&, const StopCheck& stop) {
              return gate_.Plan(request, stop);
            },
            /*storage=*/nullptr, clock,
            [this](bool ready) {
              if (!ready && ready_.is_set()) lost_.store(true);
              if (ready && !ready_.is_set()) ready_.Set();
            }) {}
  ~CoordinatorTest() override { coordinator_.Stop(); }

  void StartWorker() {
    worker_ = std::make_shared<EchoWorker>(coordinator_);
    worker_->Connect(worker_);
    ASSERT_TRUE(ready_.AwaitWithin(kPatience));
  }
  std::shared_ptr<Waiting> Submit(const std::string& id, CallId* call = nullptr) {
    auto waiting = std::make_shared<Waiting>();
    const CallId made = coordinator_.Call(waiting, [&](CallId made_id) { return SubmitEvent{made_id, Request(id)}; });
    if (call != nullptr) *call = made;
    return waiting;
  }

  Flag ready_;
  std::atomic<bool> lost_ = false;
  Gate gate_;
  Coordinator coordinator_;
  std::shared_ptr<EchoWorker> worker_;
};

TEST_F(CoordinatorTest, RequestsFromManyThreadsEachStepOnce) {
  StartWorker();
  std::vector<std::thread> threads;
  Mutex mutex;
  std::set<uint64_t> steps;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        const auto waiting = Submit(absl::StrCat("r", t, "-", i));
        const v1::RequestStatus status = std::get<v1::RequestStatus>(waiting->Get());
        MutexLock lock(&mutex);
        steps.insert(status.result().steps(0).step());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(steps.size(), 100u);
  EXPECT_EQ(*steps.rbegin(), 100u);
  EXPECT_EQ(worker_->payloads(), 100);
}

TEST_F(CoordinatorTest, TheSameIdFromManyThreadsStepsOnce) {
  StartWorker();
  std::vector<std::shared_ptr<Waiting>> all;
  for (int i = 0; i < 20; ++i) all.push_back(Submit("same"));
  for (const auto& waiting : all) EXPECT_EQ(std::get<v1::RequestStatus>(waiting->Get()).result().steps(0).step(), 1u);
  EXPECT_EQ(worker_->payloads(), 1);
}

TEST_F(CoordinatorTest, ACallThatIsGoneIsNeverAnswered) {
  StartWorker();
  worker_->set_silent();
  CallId call = 0;
  const auto gone = Submit("a", &call);
  worker_->WaitForPrepare();
  coordinator_.CallGone(call);
  coordinator_.Drain(absl::Milliseconds(20));
  ASSERT_TRUE(coordinator_.WaitDrained(kPatience));
  EXPECT_FALSE(gone->done());
}

TEST_F(CoordinatorTest, ALostWorkerLeavesTheRequestWaitingAndDrainAnswersIt) {
  StartWorker();
  worker_->set_silent();
  const auto waiting = Submit("a");
  worker_->WaitForPrepare();
  worker_->Lose();
  coordinator_.Drain(absl::Milliseconds(20));
  EXPECT_EQ(ErrorReason(std::get<absl::Status>(waiting->Get())), "DRAINING");
  EXPECT_TRUE(coordinator_.WaitDrained(kPatience));
}

TEST_F(CoordinatorTest, AFullQueueAnswersAtOnce) {
  coordinator_.Stop();
  EXPECT_EQ(ErrorReason(std::get<absl::Status>(Submit("a")->Get())), "DRAINING");
}

TEST_F(CoordinatorTest, WhileAPlanIsMadeEverythingElseIsAnswered) {
  StartWorker();
  const auto slow = Submit("slow");
  gate_.AwaitWaiting(1);
  auto model = std::make_shared<Waiting>();
  coordinator_.Call(model, [](CallId call) { return GetModelEvent{call}; });
  EXPECT_EQ(std::get<v1::ModelInfo>(model->Get()).state(), v1::ModelInfo::IDLE);
  const auto next = Submit("next");
  gate_.Open();
  EXPECT_EQ(std::get<v1::RequestStatus>(slow->Get()).result().steps(0).step(), 1u) << "it came first";
  EXPECT_EQ(std::get<v1::RequestStatus>(next->Get()).result().steps(0).step(), 2u);
}

TEST_F(CoordinatorTest, APlanEndsWhenItsCallLeavesAndTheNextOneIsMade) {
  StartWorker();
  CallId running = 0, waiting = 0;
  const auto first = Submit("slow1", &running);
  gate_.AwaitWaiting(1);
  const auto second = Submit("slow2", &waiting);
  const auto third = Submit("third");
  coordinator_.CallGone(waiting);
  coordinator_.CallGone(running);
  EXPECT_EQ(std::get<v1::RequestStatus>(third->Get()).result().steps(0).step(), 1u);
  gate_.AwaitWaiting(0);
  EXPECT_FALSE(first->done() || second->done());
}

TEST_F(CoordinatorTest, APlanThatNeedsMoreMemoryThanThereIsIsRefusedAndTheServerGoesOn) {
  StartWorker();
  EXPECT_EQ(ErrorReason(std::get<absl::Status>(Submit("huge")->Get())), "SERVER_MEMORY");
  EXPECT_EQ(std::get<v1::RequestStatus>(Submit("a")->Get()).result().steps(0).step(), 1u);
}

TEST_F(CoordinatorTest, StoppingEndsThePlanBeingMade) {
  StartWorker();
  const auto slow = Submit("slow");
  gate_.AwaitWaiting(1);
  coordinator_.Stop();
  gate_.AwaitWaiting(0);
}

TEST_F(CoordinatorTest, ADeadlineIsMetWithoutAnyOtherEvent) {
  StartWorker();
  worker_->set_silent();
  Submit("a");
  auto waiting = std::make_shared<Waiting>();
  coordinator_.Call(waiting, [](CallId call) { return GetRequestEvent{call, "a", absl::Milliseconds(20)}; });
  EXPECT_EQ(std::get<v1::RequestStatus>(waiting->Get()).state(), v1::PREPARING);
}

// Holds the coordinator's thread, with its answer, until it is let go.
class Holding final : public ClientCall {
 public:
  void OnChunk(std::shared_ptr<const v1::GroupResult>) override {}
  void OnReply(Reply) override {
    held_.Set();
    CHECK(let_go_.AwaitWithin(kPatience)) << "it is not let go";
  }
  void WaitUntilHeld() const { CHECK(held_.AwaitWithin(kPatience)) << "no answer"; }
  void LetGo() { let_go_.Set(); }

 private:
  Flag held_, let_go_;
};

std::shared_ptr<Holding> Hold(Coordinator& coordinator) {
  auto holding = std::make_shared<Holding>();
  coordinator.Call(holding, [](CallId call) { return GetModelEvent{call}; });
  holding->WaitUntilHeld();
  return holding;
}

TEST_F(CoordinatorTest, AQuestionIsAnsweredUnlessTheCoordinatorHangs) {
  Flag first, second;
  coordinator_.Ask([&] { first.Set(); });
  EXPECT_TRUE(first.AwaitWithin(kPatience));
  const auto holding = Hold(coordinator_);
  coordinator_.Ask([&] { second.Set(); });
  EXPECT_FALSE(second.is_set());
  holding->LetGo();
  EXPECT_TRUE(second.AwaitWithin(kPatience));
}

// Keeps the lines of the log with their severities, while it lives.
class Lines final : public google::LogSink {
 public:
  Lines() { google::AddLogSink(this); }
  ~Lines() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity severity, const char*, const char*, int, const google::LogMessageTime&,
            const char* message, size_t size) override {
    MutexLock lock(&mutex_);
    lines_.emplace_back(severity, std::string(message, size));
  }
  std::vector<std::pair<int, std::string>> Get() {
    MutexLock lock(&mutex_);
    return lines_;
  }

 private:
  Mutex mutex_;
  std::vector<std::pair<int, std::string>> lines_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(CoordinatorTest, EachReasonIsALineOfTheLogAtItsLevel) {
  using ::testing::Contains, ::testing::EndsWith, ::testing::Pair, ::testing::StartsWith;
  Lines lines;
  StartWorker();
  Submit("a")->Get();
  worker_->Lose();
  auto model = std::make_shared<Waiting>();
  coordinator_.Call(model, [](CallId call) { return GetModelEvent{call}; });
  model->Get();
  EXPECT_THAT(lines.Get(), Contains(Pair(google::GLOG_INFO, EndsWith("joins generation 1"))));
  EXPECT_THAT(lines.Get(), Contains(Pair(google::GLOG_WARNING, EndsWith("left: the test says so"))));
  EXPECT_THAT(lines.Get(), Contains(Pair(google::GLOG_ERROR, StartsWith("the weights of lineage L-1 at step 1 "))));
}

// The clock is the test's: nothing here depends on the machine's speed.
class FloodTest : public CoordinatorTest {
 protected:
  FloodTest() : FloodTest(std::make_unique<StillClock>()) {}
  ~FloodTest() override { coordinator_.Stop(); }
  int FloodUntil(absl::Duration turn, const std::function<bool()>& enough) {
    const auto flood = std::make_shared<Flood>(coordinator_, *clock_, turn, enough);
    flood->Next();
    return flood->Wait();
  }
  // Lets the coordinator hang while twenty of something come, a second apart, and handle them.
  void HangWhile(const std::function<void()>& come) {
    StartWorker();
    worker_->set_silent();
    const auto holding = Hold(coordinator_);
    for (int second = 0; second < 20; ++second) {
      clock_->Advance(absl::Seconds(1));
      come();
    }
    holding->LetGo();
    auto model = std::make_shared<Waiting>();
    coordinator_.Call(model, [](CallId call) { return GetModelEvent{call}; });
    model->Get();
  }
  std::unique_ptr<StillClock> clock_;

 private:
  explicit FloodTest(std::unique_ptr<StillClock> clock) : CoordinatorTest(*clock), clock_(std::move(clock)) {}
};

TEST_F(FloodTest, ALoopThatIsNeverEmptyMeetsItsDeadlinesAtTheirTime) {
  StartWorker();
  worker_->set_silent();
  Submit("a");
  worker_->WaitForPrepare();
  auto waiting = std::make_shared<Waiting>();
  coordinator_.Call(waiting, [](CallId call) { return GetRequestEvent{call, "a", absl::Seconds(8)}; });
  EXPECT_LE(FloodUntil(absl::Seconds(1), [&] { return waiting->done(); }), 9);
  EXPECT_EQ(std::get<v1::RequestStatus>(waiting->Get()).state(), v1::PREPARING);
}

TEST_F(FloodTest, AClockThatIsSetBackMovesNoDeadline) {
  StartWorker();
  worker_->set_silent();
  Submit("a");
  worker_->WaitForPrepare();
  auto waiting = std::make_shared<Waiting>(), handled = std::make_shared<Waiting>();
  coordinator_.Call(waiting, [](CallId call) { return GetRequestEvent{call, "a", absl::Seconds(8)}; });
  coordinator_.Call(handled, [](CallId call) { return GetModelEvent{call}; });
  handled->Get();
  clock_->SetBack(absl::Hours(1));
  EXPECT_LE(FloodUntil(absl::Seconds(1), [&] { return waiting->done(); }), 9);
}

TEST_F(FloodTest, AWorkerThatIsSilentWhileEventsKeepComingIsLost) {
  StartWorker();
  EXPECT_LE(FloodUntil(absl::Milliseconds(500), [&] { return lost_.load(); }), 24) << "worker_lost_after is 10 s";
}

// Four calls of 10 s each wait at any time, so what the worker says every 10 s is handled 40 s later.
TEST_F(FloodTest, AWorkerWhoseMessagesWaitInTheQueueIsNotLost) {
  StartWorker();
  int turns = 0;
  const auto speaks = [&] { return worker_->Say(), ++turns == 50; };
  const auto flood = std::make_shared<Flood>(coordinator_, *clock_, absl::Seconds(10), speaks);
  for (int i = 0; i < 4; ++i) flood->Next();
  flood->Wait();
  EXPECT_FALSE(lost_.load());
}

// Twenty of them came while the coordinator hung, a second apart.
TEST_F(FloodTest, AWorkerIsNotLostByQuestionsThatWereAsked) {
  HangWhile([this] { coordinator_.Ask([] {}); });
  EXPECT_FALSE(lost_.load()) << "worker_lost_after is 10 s";
}

TEST_F(FloodTest, AWorkerIsNotLostByCallsThatCame) {
  HangWhile(
      [this] { coordinator_.Call(std::make_shared<Waiting>(), [](CallId call) { return GetModelEvent{call}; }); });
  EXPECT_FALSE(lost_.load()) << "worker_lost_after is 10 s";
}

}  // namespace
}  // namespace stemma::server
