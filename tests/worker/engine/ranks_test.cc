// What data-parallel ranks agree on, own and exchange: failures of one, empty ranks, bytes of states and of
// collectives. The numbers of a step are tests/schedule/ranks_test.py's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/cost/state_bytes.h"
#include "tests/worker/engine/small_engine.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kRanks = 3;

class RanksTest : public SmallEngineTest {
 protected:
  std::unique_ptr<InProcess> MakeRanks(int ranks = kRanks) const {
    InProcessOptions options;
    options.run.mutable_mesh()->set_dp(static_cast<uint32_t>(ranks));
    options.placement_seed = 1;
    return MakeEngine(MakeCpuBackend(), options);
  }

  static int64_t StateBytes(const Weights& weights) {
    int64_t bytes = 0;
    for (const Parameter& p : weights.parameters)
      bytes += static_cast<int64_t>(p.exp_avg.nbytes() + p.exp_avg_sq.nbytes());
    return bytes;
  }

  static void ExpectSameWeights(const InProcess& engine) {
    for (int rank = 1; rank < kRanks; ++rank) {
      for (size_t i = 0; i < engine.weights().parameters.size(); ++i) {
        const Parameter &a = engine.weights(0).parameters[i], &b = engine.weights(rank).parameters[i];
        EXPECT_TRUE(a.weight.equal(b.weight)) << a.name << " of rank " << rank;
      }
    }
  }
};

TEST_F(RanksTest, AfterAStepAllHaveTheSameWeights) {
  const auto engine = MakeRanks();
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(Request({16, 5, 9, 30})).ok());
  const at::Tensor before = engine->weights().parameters[0].weight.clone();
  const auto vote = engine->Prepare(0);
  ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
  ASSERT_TRUE(engine->Apply(0, *vote).ok());
  ExpectSameWeights(*engine);
  EXPECT_FALSE(before.equal(engine->weights().parameters[0].weight));
}

// One rank's no is everybody's, and leaves nothing behind: the next step has the bits of a run without it.
TEST_F(RanksTest, ARankThatCannotIsTheStepsAnswer) {
  const auto engine = MakeRanks(), undisturbed = MakeRanks();
  ASSERT_TRUE(engine != nullptr && undisturbed != nullptr);
  TrainingRequest bad = Request({16, 5, 9, 30});
  const auto token = static_cast<int32_t>(vocab());
  bad.groups[2].mutable_prompt_tokens()->replace(0, sizeof(token), reinterpret_cast<const char*>(&token),
                                                 sizeof(token));
  ASSERT_TRUE(engine->Load(std::move(bad)).ok());
  const auto no = engine->Prepare(0);
  ASSERT_TRUE(no.ok()) << no.status();
  EXPECT_FALSE(no->yes());
  EXPECT_EQ(no->no_reason(), internal::v1::INTERNAL);
  EXPECT_THAT(no->message(), StartsWith("rank "));
  EXPECT_THAT(no->message(), HasSubstr("holds token"));
  int peers = 0;
  for (const internal::v1::Vote& vote : engine->votes()) {
    EXPECT_FALSE(vote.yes());
    if (vote.no_reason() == internal::v1::PEER) ++peers;
  }
  EXPECT_EQ(peers, kRanks - 1);
  for (InProcess* run : {engine.get(), undisturbed.get()}) {
    ASSERT_TRUE(run->Load(Request({16, 5, 9, 30})).ok());
    const auto vote = run->Prepare(0);
    ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
    ASSERT_TRUE(run->Apply(0, *vote).ok());
  }
  for (size_t i = 0; i < engine->weights().parameters.size(); ++i) {
    EXPECT_TRUE(engine->weights().parameters[i].weight.equal(undisturbed->weights().parameters[i].weight));
  }
}

// A gradient that is not finite reaches the owner of its elements, whichever rank computed it.
TEST_F(RanksTest, ANonfiniteGradientOfOneRankIsANo) {
  const auto engine = MakeRanks();
  ASSERT_NE(engine, nullptr);
  TrainingRequest request = Request({16, 5, 9, 30});
  for (v1::Rollout& rollout : *request.groups[1].mutable_rollouts()) {
    rollout.set_advantage(std::numeric_limits<double>::infinity());
  }
  ASSERT_TRUE(engine->Load(std::move(request)).ok());
  const auto vote = engine->Prepare(0);
  ASSERT_TRUE(vote.ok()) << vote.status();
  EXPECT_FALSE(vote->yes());
  EXPECT_EQ(vote->no_reason(), internal::v1::NONFINITE);
  EXPECT_THAT(vote->message(), HasSubstr("is not finite"));
}

// One group on three ranks: two have nothing, and still own their part of the states.
TEST_F(RanksTest, RanksWithoutWorkJoin) {
  const auto engine = MakeRanks(), alone = MakeRanks(1);
  ASSERT_TRUE(engine != nullptr && alone != nullptr);
  for (InProcess* run : {engine.get(), alone.get()}) {
    ASSERT_TRUE(run->Load(Request({16})).ok());
    const auto vote = run->Prepare(0);
    ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
    ASSERT_TRUE(run->Apply(0, *vote).ok());
  }
  int empty = 0;
  for (const internal::v1::Vote& vote : engine->votes()) empty += vote.empty() ? 1 : 0;
  EXPECT_EQ(empty, kRanks - 1);
  ExpectSameWeights(*engine);
  for (size_t i = 0; i < engine->weights().parameters.size(); ++i) {
    // What one rank computed is added to zeros: no bit changes.
    EXPECT_TRUE(engine->weights().parameters[i].weight.equal(alone->weights().parameters[i].weight));
  }
}

TEST_F(RanksTest, SayWhatTheReductionMovedAndTook) {
  const auto engine = MakeRanks(), alone = MakeRanks(1);
  ASSERT_TRUE(engine != nullptr && alone != nullptr);
  for (InProcess* run : {engine.get(), alone.get()}) {
    ASSERT_TRUE(run->Load(Request({16, 5})).ok());
    const auto vote = run->Prepare(0);
    ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
  }
  double elements = 0;
  for (const Parameter& p : engine->weights().parameters) elements += static_cast<double>(p.weight.numel());
  for (const internal::v1::Vote& vote : engine->votes()) {
    const double sent = elements * sizeof(float) * (kRanks - 1) / kRanks;
    EXPECT_NEAR(static_cast<double>(vote.sums().reduce_bytes()) / sent, 1, 0.01) << "parts are padded to 16 elements";
    EXPECT_GT(vote.sums().reduce_s(), 0);
    EXPECT_GT(vote.sums().agree_s(), 0);
  }
  EXPECT_EQ(alone->votes()[0].sums().reduce_bytes(), 0u);
  EXPECT_EQ(alone->votes()[0].sums().reduce_s(), 0) << "one rank reduces nothing";
  EXPECT_EQ(alone->votes()[0].sums().agree_s(), 0);
}

TEST_F(RanksTest, OwnTheirShareOfTheStates) {
  const auto engine = MakeRanks(), alone = MakeRanks(1);
  ASSERT_TRUE(engine != nullptr && alone != nullptr);
  const int64_t whole = StateBytes(alone->weights());
  v1::Mesh mesh;
  mesh.set_dp(kRanks);
  const int64_t planned = stemma::StateBytesOf(engine->model(), RunDtype::kFp32, mesh).optimizer;
  int64_t sum = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const int64_t own = StateBytes(engine->weights(rank));
    EXPECT_NEAR(static_cast<double>(own) * kRanks / static_cast<double>(whole), 1, 0.01);
    EXPECT_NEAR(static_cast<double>(own) / static_cast<double>(planned), 1, 0.01) << "as the server plans";
    sum += own;
  }
  EXPECT_EQ(sum, whole);
}

}  // namespace
}  // namespace stemma::testing
