#include "server/protocol/gang.h"

#include "common/base/rank_phase.h"
#include "gtest/gtest.h"
#include "tests/server/protocol/made_gangs.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using ::testing::HasSubstr;
using testing::Invalid;
using testing::IsOk;
using testing::StatusIs;

// Lets seconds pass, one event each.
void Wait(Gang& gang, absl::Time& now, int seconds) {
  for (int i = 0; i < seconds; ++i) gang.Pass(now += absl::Seconds(1));
}

internal::v1::Heartbeat HeartbeatOf(const std::string& phase, uint64_t progress) {
  internal::v1::Heartbeat heartbeat;
  heartbeat.set_phase(phase);
  heartbeat.set_progress(progress);
  return heartbeat;
}

std::string ProblemOf(const Gang& gang) {
  const auto problem = gang.FindProblem();
  return problem ? problem->reason : "";
}

TEST(GangTest, AWorkerJoinsThenServesThenIsGone) {
  Gang gang(Options());
  EXPECT_TRUE(gang.workers().empty());
  const auto configure = JoinAndBegin(gang, kStart, 7, Worker("w"));
  ASSERT_THAT(configure.status(), IsOk());
  EXPECT_EQ(configure->epoch(), 4u);
  EXPECT_EQ(configure->generation(), 1u);
  EXPECT_EQ(configure->rank(), 0u);
  EXPECT_TRUE(gang.Has(7));
  EXPECT_FALSE(gang.Has(8));
  EXPECT_FALSE(gang.serves()) << "it loads the model";
  EXPECT_EQ(gang.config().threads(), 8u) << "in force until it is ready";
  EXPECT_THAT(gang.BecomeReady(7, Loaded()), IsOk());
  EXPECT_TRUE(gang.serves());
  EXPECT_EQ(gang.config().threads(), 2u);
  EXPECT_GT(gang.config().memory_budget_bytes(), 0u) << "divided for its memory";
  EXPECT_THAT(gang.BecomeReady(7, Loaded()), Invalid("a second Ready"));
  EXPECT_THAT(gang.OpenStore(7, "127.0.0.1:9").status(), Invalid("not to be opened")) << "it is alone";
  gang.Disband(kStart);
  EXPECT_TRUE(gang.workers().empty());
  EXPECT_FALSE(gang.Has(7));
  EXPECT_TRUE(gang.ever_served());
}

TEST(GangTest, OneAtATimeAndEachInItsOwnGeneration) {
  Gang gang(Options());
  ASSERT_THAT(JoinAndBegin(gang, kStart, 1, Worker("w")).status(), IsOk());
  EXPECT_EQ(gang.Join(kStart, 2, Worker("x")).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(gang.Has(1));
  EXPECT_EQ(gang.KeyOf(0).incarnation(), "w");
  EXPECT_EQ(gang.KeyOf(0).generation(), 1u);
  gang.Disband(kStart);
  ASSERT_THAT(JoinAndBegin(gang, kStart, 2, Worker("x"), 3).status(), IsOk());
  EXPECT_EQ(gang.KeyOf(0).incarnation(), "x");
  EXPECT_EQ(gang.KeyOf(0).generation(), 2u);
}

TEST(GangTest, NoGenerationBeginsWithAWorkerThatIsTooSmall) {
  Gang gang(Options());
  internal::v1::Register small = Worker("w");
  small.set_memory_free_bytes(1 << 20);
  EXPECT_FALSE(JoinAndBegin(gang, kStart, 1, small).ok());
  EXPECT_FALSE(gang.begun());
  EXPECT_EQ(gang.generation(), 0u);
}

TEST(GangTest, RanksOfTwoBuildsAreRefused) {
  Gang gang(MeshOf(3));
  internal::v1::Register first = WorkerAt("a", "cpu:0"), second = WorkerAt("a", "cpu:1");
  first.set_build_id("b1");
  second.set_build_id("b2");
  ASSERT_THAT(gang.Join(kStart, 1, first), IsOk());
  EXPECT_THAT(gang.Join(kStart, 2, second),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("this one, cpu:1 of host a, has build b2, another, cpu:0 of host a, has build b1: "
                                 "install the same one")))
      << "it may try again";
  EXPECT_THAT(gang.Join(kStart, 2, WorkerAt("a", "cpu:2")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has no build id, another")))
      << "one build says its id everywhere, or nowhere";
  second.set_build_id("b1");
  EXPECT_THAT(gang.Join(kStart, 3, second), IsOk());
}

TEST(GangTest, AStoreIsRankZerosAndNobodyLoadsBeforeIt) {
  Gang gang(MeshOf(2));
  ASSERT_THAT(gang.Join(kStart, 1, WorkerAt("a", "cpu:0")), IsOk());
  ASSERT_THAT(JoinAndBegin(gang, kStart, 2, WorkerAt("a", "cpu:1")).status(), IsOk());
  EXPECT_THAT(gang.OpenStore(2, "127.0.0.1:9").status(), Invalid("not to be opened"));
  EXPECT_THAT(gang.BecomeReady(2, Loaded()), Invalid("before it was told"));
  ASSERT_THAT(gang.OpenStore(1, "127.0.0.1:9").status(), IsOk());
  EXPECT_THAT(gang.BecomeReady(2, Loaded()), IsOk());
  EXPECT_FALSE(gang.serves()) << "rank 0 loads still";
  internal::v1::Ready other = Loaded();
  other.mutable_config()->set_threads(1);
  EXPECT_THAT(gang.BecomeReady(1, other), IsOk());
  EXPECT_TRUE(gang.serves());
  EXPECT_EQ(gang.config().threads(), 1u) << "the fewest";
}

internal::v1::Ready Measured(const std::string& axis, uint32_t ranks, double message_s) {
  internal::v1::Ready ready = Loaded();
  v1::LinkInfo& link = *ready.add_links();
  link.set_axis(axis);
  link.set_ranks(ranks);
  link.set_message_s(message_s);
  link.set_byte_s(1e-9);
  return ready;
}

TEST(GangTest, LinksAreThoseOfTheGenerationAndOfItsSlowestRank) {
  GangOptions options = Options();
  options.config.mutable_mesh()->set_tp(2);
  Gang gang(options);
  for (const double slowest_s : {3e-4, 2e-4}) {
    ASSERT_THAT(gang.Join(kStart, 1, WorkerAt("a", "cpu:1")), IsOk());
    ASSERT_THAT(gang.Join(kStart, 2, WorkerAt("a", "cpu:2")), IsOk());
    ASSERT_THAT(gang.Begin(kStart, {}).status(), IsOk());
    ASSERT_THAT(gang.OpenStore(1, "127.0.0.1:1").status(), IsOk());
    EXPECT_TRUE(gang.links().empty()) << "those of the generation before have ended with it";
    EXPECT_THAT(gang.BecomeReady(1, Measured("tp", 3, 1e-4)), Invalid("ready.links.ranks of tp is 3"));
    EXPECT_THAT(gang.BecomeReady(1, Measured("pp", 2, 1e-4)), Invalid("ready.links.ranks of pp is 2"));
    EXPECT_THAT(gang.BecomeReady(1, Measured("tp", 2, slowest_s)), IsOk());
    EXPECT_THAT(gang.BecomeReady(2, Measured("tp", 2, 1e-4)), IsOk());
    ASSERT_EQ(gang.links().size(), 1u);
    EXPECT_EQ(gang.links()[0].message_s(), slowest_s);
    gang.Disband(kStart);
    EXPECT_TRUE(gang.links().empty());
  }
}

internal::v1::Ready LoadedOn(const std::string& device_name, const std::vector<std::string>& kernels_off) {
  internal::v1::Ready ready = Loaded();
  ready.set_device_name(device_name);
  for (const std::string& kernel : kernels_off) {
    ready.add_kernels_off()->set_kernel(kernel);
    ready.mutable_kernels_off()->rbegin()->set_reason("NaN\nin y_TD");
  }
  return ready;
}

TEST(GangTest, KernelsThatAreOffAreThoseOfEachReadyWorkerAndTheMostOfAnyIsCounted) {
  Gang gang(MeshOf(2));
  ASSERT_THAT(gang.Join(kStart, 1, WorkerAt("a", "cpu:0")), IsOk());
  ASSERT_THAT(JoinAndBegin(gang, kStart, 2, WorkerAt("a", "cpu:1")).status(), IsOk());
  ASSERT_THAT(gang.OpenStore(1, "127.0.0.1:9").status(), IsOk());
  EXPECT_EQ(gang.KernelsOff(), std::nullopt);
  ASSERT_THAT(gang.BecomeReady(1, LoadedOn("NVIDIA H200", {})), IsOk());
  EXPECT_EQ(gang.KernelsOff(), 0u) << "it checked them";
  ASSERT_THAT(gang.BecomeReady(2, LoadedOn("NVIDIA H200", {"loss", "logits"})), IsOk());
  EXPECT_EQ(gang.KernelsOff(), 2u);
  EXPECT_EQ(gang.worker(0).device_name, "NVIDIA H200");
  EXPECT_TRUE(gang.worker(0).kernels_off.empty());
  ASSERT_EQ(gang.worker(1).kernels_off.size(), 2u);
  EXPECT_EQ(gang.worker(1).kernels_off[1].kernel(), "logits");
  EXPECT_EQ(gang.worker(1).kernels_off[1].reason(), "NaN in y_TD") << "one line";
}

TEST(GangTest, NoKernelsAreCountedOnDevicesThatCheckNone) {
  Gang gang(Options());
  ASSERT_THAT(JoinAndBegin(gang, kStart, 1, Worker("w")).status(), IsOk());
  ASSERT_THAT(gang.BecomeReady(1, Loaded()), IsOk());
  EXPECT_EQ(gang.KernelsOff(), std::nullopt);
  EXPECT_EQ(gang.worker(0).device_name, "");
}

TEST(GangTest, WhoHasNoPlaceInTheMeshDoesNotJoin) {
  Gang gang(MeshOf(3));
  ASSERT_THAT(gang.Join(kStart, 1, WorkerAt("a", "cpu")), IsOk());
  const absl::Status twice = gang.Join(kStart, 2, WorkerAt("a", "cpu:0"));
  EXPECT_EQ(twice.code(), absl::StatusCode::kFailedPrecondition) << "cpu is cpu:0; it may try again: " << twice;
  EXPECT_NE(twice.message().find("cpu:0 of host a has a worker already, a-"), std::string::npos) << twice;
  EXPECT_THAT(gang.Join(kStart, 2, WorkerAt("a", "cuda:1")), Invalid("devices of one kind"));
  internal::v1::Register old = WorkerAt("a", "cpu:1");
  old.set_version("0.0.1");
  EXPECT_THAT(gang.Join(kStart, 2, old),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the worker is version \"0.0.1\"")))
      << "it may try again";
  EXPECT_THAT(gang.Join(kStart, 2, WorkerAt("b", "cpu:0", "10.0.0.2")), Invalid("the one on cpu:0 of host a"))
      << "nobody reaches the first one from there";
  EXPECT_THAT(gang.Join(kStart, 2, WorkerAt("b", "cpu:0", "127.0.0.1")), Invalid("--address"));
  ASSERT_THAT(gang.Join(kStart, 2, WorkerAt("a", "cpu:1")), IsOk());
  ASSERT_THAT(gang.Join(kStart, 3, WorkerAt("a", "cpu:2")), IsOk());
  const absl::Status one_too_many = gang.Join(kStart, 4, WorkerAt("a", "cpu:3"));
  EXPECT_EQ(one_too_many.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(one_too_many.message().find("all 3 ranks"), std::string::npos) << one_too_many;
  EXPECT_FALSE(gang.Has(4));
}

TEST(GangTest, AWorkerThatWaitsMayLeave) {
  Gang gang(MeshOf(2));
  ASSERT_THAT(gang.Join(kStart, 1, WorkerAt("a", "cpu:0")), IsOk());
  gang.Leave(kStart, 1);
  EXPECT_FALSE(gang.Has(1));
  ASSERT_THAT(gang.Join(kStart, 2, WorkerAt("a", "cpu:0")), IsOk());
  EXPECT_FALSE(gang.full());
}

TEST(GangTest, WorkersOfAHostShareItsMemoryAndCores) {
  for (const bool one_host : {true, false}) {
    GangOptions options = MeshOf(2);
    options.config.clear_threads();
    Gang gang(options);
    internal::v1::Register first = WorkerAt("a", "cpu:0", "10.0.0.1");
    internal::v1::Register second = WorkerAt(one_host ? "a" : "b", "cpu:1", "10.0.0.2");
    for (internal::v1::Register* message : {&first, &second}) {
      message->set_memory_free_bytes(uint64_t{16} << 30);
      message->set_cores(6);
    }
    ASSERT_THAT(gang.Join(kStart, 1, first), IsOk());
    const auto configure = JoinAndBegin(gang, kStart, 2, second);
    ASSERT_THAT(configure.status(), IsOk());
    const int64_t each = int64_t{one_host ? 8 : 16} << 30;
    const auto expected = DivideMemory(options.model, {.device_free_bytes = each}, options.config);
    ASSERT_THAT(expected.status(), IsOk());
    EXPECT_EQ(configure->config().memory_budget_bytes(), expected->memory_budget_bytes());
    EXPECT_EQ(configure->config().threads(), one_host ? 3u : 0u);  // 0: all cores of its host
  }
}

TEST(GangTest, EveryRankThatIsTooSmallIsNamed) {
  Gang gang(MeshOf(2));
  internal::v1::Register first = WorkerAt("a", "cpu:0"), second = WorkerAt("a", "cpu:1");
  for (internal::v1::Register* message : {&first, &second}) message->set_memory_free_bytes(1 << 20);
  ASSERT_THAT(gang.Join(kStart, 1, first), IsOk());
  const absl::Status status = JoinAndBegin(gang, kStart, 2, second).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(status.message().find("cpu:0 of host a: "), std::string::npos) << status;
  EXPECT_NE(status.message().find("; cpu:1 of host a: "), std::string::npos) << status;
}

TEST(GangTest, SilenceIsCountedOfEachWorkerFromItsLastWord) {
  Gang gang(MeshOf(2));
  absl::Time now = kStart;
  gang.Pass(now);
  ASSERT_THAT(gang.Join(now, 1, WorkerAt("a", "cpu:0")), IsOk());
  ASSERT_THAT(gang.Join(now, 2, WorkerAt("a", "cpu:1")), IsOk());
  Wait(gang, now, 14);
  EXPECT_EQ(ProblemOf(gang), "");
  gang.Heard(1);
  Wait(gang, now, 1);
  EXPECT_EQ(ProblemOf(gang), "no heartbeat for 15s");
  EXPECT_EQ(gang.FindProblem()->session, 2u);
}

TEST(GangTest, TimeInWhichTheServerSleptCountsForTwoSecondsOnly) {
  Gang gang(Options());
  gang.Pass(kStart);
  ASSERT_THAT(JoinAndBegin(gang, kStart, 1, Worker("w")).status(), IsOk());
  EXPECT_EQ(gang.Pass(kStart + absl::Hours(1)), kCountedMax);
  EXPECT_EQ(ProblemOf(gang), "");
}

TEST(GangTest, AWorkerThatSpeaksAndNeverLoadsIsGivenUp) {
  Gang gang(Options());
  absl::Time now = kStart;
  gang.Pass(now);
  ASSERT_THAT(JoinAndBegin(gang, now, 1, Worker("w")).status(), IsOk());
  for (int i = 0; i < 299; ++i) {
    Wait(gang, now, 1);
    gang.Heard(1);
  }
  EXPECT_EQ(ProblemOf(gang), "");
  Wait(gang, now, 1);
  EXPECT_NE(ProblemOf(gang).find("loading the model"), std::string::npos) << ProblemOf(gang);
  gang.Heard(1);
  EXPECT_THAT(gang.BecomeReady(1, Loaded()), IsOk());
  EXPECT_EQ(ProblemOf(gang), "");
}

TEST(GangTest, AnotherWorkerIsWaitedForFromTheFirstLossUntilOneIsReady) {
  Gang gang(Options());
  EXPECT_EQ(gang.ReturnDeadline(), absl::InfiniteFuture()) << "before the first worker nothing is waited for";
  ASSERT_THAT(JoinAndBegin(gang, kStart, 1, Worker("w")).status(), IsOk());
  ASSERT_THAT(gang.BecomeReady(1, Loaded()), IsOk());
  gang.Disband(kStart);
  EXPECT_FALSE(gang.MissingTooLong(kStart + absl::Seconds(119)));
  EXPECT_TRUE(gang.MissingTooLong(kStart + absl::Seconds(120)));
  ASSERT_THAT(JoinAndBegin(gang, kStart + absl::Seconds(60), 2, Worker("x")).status(), IsOk());
  gang.Disband(kStart + absl::Seconds(90));
  EXPECT_TRUE(gang.MissingTooLong(kStart + absl::Seconds(120))) << "one that never loads does not begin the wait anew";
  ASSERT_THAT(JoinAndBegin(gang, kStart + absl::Seconds(100), 3, Worker("y")).status(), IsOk());
  ASSERT_THAT(gang.BecomeReady(3, Loaded()), IsOk());
  EXPECT_FALSE(gang.MissingTooLong(kStart + absl::Hours(9)));
}

TEST(GangTest, TheNextLookIsASecondAwayAndEventsDoNotPutItOff) {
  Gang gang(Options());
  EXPECT_EQ(gang.NextLook(), absl::InfiniteFuture());
  ASSERT_THAT(JoinAndBegin(gang, kStart, 1, Worker("w")).status(), IsOk());
  gang.Pass(kStart + absl::Milliseconds(900));
  EXPECT_EQ(gang.NextLook(), kStart + absl::Seconds(1));
  gang.Look(kStart + absl::Seconds(1));
  EXPECT_EQ(gang.NextLook(), kStart + absl::Seconds(2));
}

TEST(GangTest, OneJobMovesWhenAnyRankDoes) {
  Gang gang(MeshOf(2));
  ASSERT_THAT(gang.Join(kStart, 1, WorkerAt("a", "cpu:0")), IsOk());
  ASSERT_THAT(JoinAndBegin(gang, kStart, 2, WorkerAt("a", "cpu:1")).status(), IsOk());
  ASSERT_THAT(gang.OpenStore(1, "a:1").status(), IsOk());
  for (const SessionId session : {1, 2}) ASSERT_THAT(gang.BecomeReady(session, Loaded()), IsOk());
  gang.Heard(1, HeartbeatOf("suffix", 3));
  gang.Heard(2, HeartbeatOf("reduce", 4));
  EXPECT_EQ(gang.progress(), 7u);
  EXPECT_EQ(gang.PhasesText(), "rank 0 suffix, rank 1 reduce");
}

// A worker says "idle" until it is told what to load. `stemma local` takes a rank that does not wait or load to serve.
TEST(GangTest, ARankWaitsOrLoadsUntilItsWeightsAreTaken) {
  Gang gang(Options());
  ASSERT_THAT(gang.Join(kStart, 1, Worker("w")), IsOk());
  gang.Heard(1, HeartbeatOf("idle", 0));
  EXPECT_EQ(gang.PhasesText(), kWaitingPhase);
  ASSERT_THAT(gang.Begin(kStart, {}).status(), IsOk());
  gang.Heard(1, HeartbeatOf("idle", 0));
  EXPECT_EQ(gang.PhasesText(), kLoadingPhase);
  EXPECT_FALSE(HasModel(gang.PhasesText()));
  ASSERT_THAT(gang.BecomeReady(1, Loaded()), IsOk());
  EXPECT_TRUE(HasModel(gang.PhasesText()));
}

}  // namespace
}  // namespace stemma::server
