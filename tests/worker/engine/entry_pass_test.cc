// The pass before a request's first step: its log-probs are those of the loss, and its seconds are its own step's.
#include <gtest/gtest.h>

#include <string>

#include "tests/worker/engine/small_engine.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::testing {
namespace {

class EntryPassTest : public SmallEngineTest {
 protected:
  // Two steps on the same groups, against log-probs under the weights that the request begins with.
  static TrainingRequest OldFromWeights(double temperature) {
    TrainingRequest request = Request({16, 5});
    v1::LossConfig& loss = *request.update.mutable_loss();
    loss.set_loss_mode("importance_sampling");
    loss.set_temperature(temperature);
    request.update.mutable_old()->set_from(v1::LogProbSource::WEIGHTS);
    request.update.mutable_old()->set_weights("policy");
    request.update.set_ppo_epochs(2);
    return request;
  }
};

// In the first step the policy is the one of the pass, so no log-prob differs; at another temperature each would.
TEST_F(EntryPassTest, LogProbsAreOfTheLosssTemperature) {
  InProcessOptions options;
  options.run.set_dtype("fp64");
  const auto engine = MakeEngine(MakeCpuBackend(), options);
  ASSERT_NE(engine, nullptr);
  for (const double temperature : {1.0, 0.5}) {
    ASSERT_TRUE(engine->Load(OldFromWeights(temperature)).ok());
    const auto vote = engine->Prepare(0);
    ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
    ASSERT_EQ(vote->sums().loss_tokens(), 32U);
    EXPECT_NEAR(vote->sums().neg_log_ratio_nats(), 0, 1e-9) << "temperature " << temperature;
  }
}

TEST_F(EntryPassTest, SecondsOfThePassAreOneStepsAndNoLaterOnes) {
  const auto engine = MakeEngine(MakeCpuBackend());
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(OldFromWeights(1)).ok());
  for (int k = 0; k < 2; ++k) {
    const auto vote = engine->Prepare(k);
    ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
    EXPECT_EQ(vote->sums().log_probs_s() > 0, k == 0) << k;
    EXPECT_EQ(engine->results().size(), k == 0 ? 4U : 0U) << "log-probs are told in the first epoch, step " << k;
    ASSERT_TRUE(engine->Apply(k, *vote).ok());
  }
}

// The last stage of a pipeline alone has the pass's log-probs. What it misses is every stage's no, before one of them
// waits for another.
TEST_F(EntryPassTest, ALogProbThatTheLastStageMissesIsEveryStagesNo) {
  InProcessOptions options;
  options.run.mutable_mesh()->set_pp(2);
  bool edits = true;
  options.edit_entry_pass = [&](v1::StepPlan& pass) {
    if (edits) pass.mutable_clusters(0)->mutable_waves(0)->mutable_members()->RemoveLast();
  };
  const auto engine = MakeEngine(MakeCpuBackend(), options);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(OldFromWeights(1)).ok());
  const auto no = engine->Prepare(0);
  ASSERT_TRUE(no.ok()) << no.status();
  EXPECT_NE(no->message().find("log-probs under policy this rank does not have"), std::string::npos) << no->message();
  EXPECT_EQ(engine->votes()[0].no_reason(), internal::v1::PEER);
  edits = false;
  ASSERT_TRUE(engine->Load(OldFromWeights(1)).ok());
  const auto vote = engine->Prepare(0);
  EXPECT_TRUE(vote.ok() && vote->yes()) << vote.status();
}

}  // namespace
}  // namespace stemma::testing
