// What an engine answers of a verification (VerifyGroup): a step with shared prompts beside the dense one. Models,
// meshes, requests and budgets are drawn; the ranks are threads, and server and worker are the product's own. That both
// runs are right, and not wrong together, parity and schedule tests say against transformers.
//
// CI runs fixed seeds; STEMMA_SEED draws others, and a failure prints its case.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/cost/state_bytes.h"
#include "tests/testing/control_kernels.h"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"
#include "tests/worker/engine/gang_cases.h"
#include "tests/worker/engine/small_engine.h"

namespace stemma::testing {
namespace {

// fp64, of both runs: every sum has fewer than 1e4 terms, so 1e-12 leaves about 1e3 roundings of room.
constexpr double kRounding = 1e-12;

TrainingRequest DrawVerification(const Case& c, Draw& draw) {
  TrainingRequest request = SyntheticRequest(c.prompts, c.responses, c.model.vocab_size);
  request.kind = TrainingRequest::Kind::kVerify;
  v1::UpdateHeader& update = request.update;
  v1::LossConfig& loss = *update.mutable_loss();
  loss.set_loss_mode(draw.Of<std::string>({"gpg", "vanilla", "gspo"}));
  loss.set_loss_agg_mode(draw.Of<std::string>({"token-mean", "seq-mean-token-mean", "prompt-mean"}));
  loss.set_temperature(draw.Chance(50) ? 1 : 0.7);
  if (loss.loss_mode() != "gpg") {
    loss.set_clip_ratio_low(0.2);
    loss.set_clip_ratio_high(0.2);
    update.mutable_old()->set_from(draw.Chance(50) ? v1::LogProbSource::WEIGHTS : v1::LogProbSource::ON_POLICY);
    if (update.old().from() == v1::LogProbSource::WEIGHTS) update.mutable_old()->set_weights("policy");
  }
  if (draw.Chance(40)) loss.set_entropy_coeff(0.01);
  if (draw.Chance(30)) update.mutable_request()->set_schedule(v1::AUTO);
  return request;
}

class VerificationTest : public GangCaseTest {};

TEST_F(VerificationTest, SharedPromptsAreTheDenseStepOnEveryMesh) {
  constexpr int kCases = 50;
  Draw draw(FirstSeed() + 1);
  int ran = 0, meshes = 0, sharded = 0, with_passes = 0;
  for (int i = 0; i < kCases; ++i) {
    Case c = DrawGangCase(draw);
    c.run.set_dtype("fp64");
    const TrainingRequest request = DrawVerification(c, draw);
    SCOPED_TRACE(
        absl::StrCat("STEMMA_SEED=", FirstSeed(), " case ", i, ": ", c.text(), " ", request.update.ShortDebugString()));
    const std::unique_ptr<InProcess> engine = Load(c, request);
    if (engine == nullptr) continue;
    const auto answer = engine->Verify();
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_GT(answer->gradient_norm(), 0);
    EXPECT_LT(answer->error_norm(), kRounding * answer->gradient_norm());
    EXPECT_LT(answer->log_prob_error_max(), kRounding);
    EXPECT_GT(answer->log_prob_tokens(), 0u);
    EXPECT_NEAR(answer->dense().metrics().at("actor/grad_norm"), answer->gradient_norm(),
                kRounding * answer->gradient_norm());
    ++ran;
    meshes += NumRanks(c.run.mesh()) > 1 ? 1 : 0;
    sharded += c.run.shard_parameters() == v1::SHARD_PARAMETERS_ON ? 1 : 0;
    with_passes += engine->plan().plan.has_log_prob_pass() ? 1 : 0;
  }
  std::printf("%d of %d cases ran: %d of several ranks, %d of sharded parameters, %d with a pass before the step\n",
              ran, kCases, meshes, sharded, with_passes);
  EXPECT_GT(ran, kCases / 3);
  EXPECT_GT(meshes, kCases / 5);
  EXPECT_GT(sharded, kCases / 20);
  EXPECT_GT(with_passes, kCases / 20);
}

// On one small model.
class VerifyingEngineTest : public CopyRanksTest {
 protected:
  static TrainingRequest Verified() {
    TrainingRequest request = Request({16, 5, 9, 30});
    request.kind = TrainingRequest::Kind::kVerify;
    return request;
  }
  static InProcessOptions OfDtype(const char* dtype) {
    InProcessOptions options;
    options.run.set_dtype(dtype);
    return options;
  }
  std::map<std::string, at::Tensor> GradientsBy(const InProcessOptions& options, v1::Schedule schedule) const {
    TrainingRequest request = Request({16, 5, 9, 30});
    request.update.mutable_request()->set_schedule(schedule);
    const auto engine = Make(options);
    EXPECT_TRUE(engine->Load(request).ok());
    EXPECT_TRUE(engine->Prepare(0)->yes());
    std::map<std::string, at::Tensor> gradients;
    for (const Parameter& parameter : engine->weights().parameters) {
      gradients[parameter.name] = parameter.grad.to(at::kDouble).clone();
    }
    return gradients;
  }
};

// The norms are those of the gradients that steps of either schedule make.
TEST_F(VerifyingEngineTest, SaysHowFarTheGradientsOfTwoStepsAreApart) {
  const InProcessOptions options = OfDtype("fp32");
  const auto engine = Make(options);
  ASSERT_TRUE(engine->Load(Verified()).ok());
  const auto answer = engine->Verify();
  ASSERT_TRUE(answer.ok()) << answer.status();
  const auto reuse = GradientsBy(options, v1::REUSE), dense = GradientsBy(options, v1::DENSE);
  ASSERT_EQ(static_cast<size_t>(answer->parameters_size()), dense.size());
  double error = 0, norm = 0, last = std::numeric_limits<double>::infinity();
  for (const v1::ParameterError& parameter : answer->parameters()) {
    const double of_error = (reuse.at(parameter.name()) - dense.at(parameter.name())).norm().item<double>();
    const double of_norm = dense.at(parameter.name()).norm().item<double>();
    EXPECT_NEAR(parameter.error_norm(), of_error, 1e-9 * of_error) << parameter.name();
    EXPECT_NEAR(parameter.gradient_norm(), of_norm, 1e-9 * of_norm) << parameter.name();
    EXPECT_LE(parameter.error_norm(), last) << "the largest comes first";
    last = parameter.error_norm();
    error += of_error * of_error;
    norm += of_norm * of_norm;
  }
  EXPECT_GT(error, 0) << "rounding of two ways";
  EXPECT_NEAR(answer->error_norm(), std::sqrt(error), 1e-9 * std::sqrt(error));
  EXPECT_NEAR(answer->gradient_norm(), std::sqrt(norm), 1e-9 * std::sqrt(norm));
  // What each run computed: three rows fewer of each shared prompt of two rollouts than dense.
  const auto& of_reuse = answer->reuse().metrics();
  const auto& of_dense = answer->dense().metrics();
  EXPECT_EQ(of_dense.at("prefix/tokens_computed"), of_dense.at("prefix/tokens_logical"));
  EXPECT_EQ(of_dense.at("prefix/tokens_computed") - of_reuse.at("prefix/tokens_computed"), 15 + 4 + 8 + 29);
  EXPECT_GT(of_dense.at("perf/actor/time_per_step"), 0);
  EXPECT_GT(of_reuse.at("perf/actor/time_per_step"), 0);
  EXPECT_FALSE(of_reuse.contains("time/apply_s") || of_dense.contains("predicted/apply_s"));
}

// An engine that is wrong with shared prompts alone: the errors are none of rounding's.
TEST_F(VerifyingEngineTest, ControlAWrongMergeIsSeen) {
  const struct {
    const char* control;
    bool in_log_probs;
  } kControls[] = {
      {"partial_both", false}, {"dropped_gk", false}, {"restarted_position", true}, {"partial_lse", false}};
  for (const auto& [control, in_log_probs] : kControls) {
    const auto engine = MakeEngine(MakeCpuBackend(MakeControlKernel(control, 10000)), OfDtype("fp64"));
    ASSERT_TRUE(engine->Load(Verified()).ok());
    const auto answer = engine->Verify();
    ASSERT_TRUE(answer.ok()) << answer.status();
    std::printf("%s: the gradients are %.2g apart, log-probs %.2g\n", control,
                answer->error_norm() / answer->gradient_norm(), answer->log_prob_error_max());
    EXPECT_GT(answer->error_norm(), 1e-3 * answer->gradient_norm()) << control;
    EXPECT_EQ(answer->log_prob_error_max() > 1e-6, in_log_probs) << control;
  }
}

TEST_F(VerifyingEngineTest, LeavesNothingBehind) {
  InProcessOptions options = OfDtype("bf16");
  *options.run.mutable_mesh() = MakeMesh({.dp = 2, .tp = 2});
  const auto engine = Make(options), undisturbed = Make(options);
  ASSERT_TRUE(engine->Load(Verified()).ok());
  const auto answer = engine->Verify();
  ASSERT_TRUE(answer.ok()) << answer.status();
  ExpectSameWeights(*engine, *undisturbed, 4);
  Step(*engine);
  Step(*undisturbed);
  ExpectSameWeights(*engine, *undisturbed, 4);
}

// The dense run is planned beside the other's gradients, which are as many bytes as it says.
TEST_F(VerifyingEngineTest, HoldsTheGradientsThatTheDenseRunIsPlannedBeside) {
  for (const char* dtype : {"fp32", "bf16", "fp64"}) {
    const auto engine = Make(OfDtype(dtype));
    ASSERT_TRUE(engine->Load(Verified()).ok());
    const auto answer = engine->Verify();
    ASSERT_TRUE(answer.ok()) << answer.status();
    const auto &reuse = answer->reuse().metrics(), &dense = answer->dense().metrics();
    const double held = dense.at("measured/state_bytes") - reuse.at("measured/state_bytes");
    const auto planned = static_cast<double>(KeptGradientBytes(engine->model(), engine->run()));
    EXPECT_NEAR(held, planned, 512) << dtype;
    EXPECT_LT(dense.at("plan/measured_bytes"), 1.03 * (dense.at("plan/predicted_bytes") - planned)) << dtype;
  }
}

// One rank keeps the gradient of each element, and none keeps more than is planned.
TEST_F(VerifyingEngineTest, RanksDivideWhatIsKept) {
  InProcessOptions options = OfDtype("fp32");
  *options.run.mutable_mesh() = MakeMesh({.dp = 3});
  const auto engine = Make(options);
  const OptimizerShards shards = ShardsOf(engine->weights(), 3);
  int64_t all = 0, most = 0;
  for (int rank = 0; rank < 3; ++rank) {
    int64_t elements = 0;
    for (const ParameterRange& range : shards.owned(rank)) elements += range.count;
    all += elements;
    most = std::max(most, elements);
  }
  EXPECT_EQ(all, engine->model().num_parameters());
  EXPECT_EQ(KeptGradientBytes(engine->model(), engine->run()), 4 * most);
}

TEST_F(VerifyingEngineTest, ARankThatCannotEndsBothRunsOnAllOfThem) {
  for (const int polls : {0, 1}) {  // in the run with shared prompts; in the dense one
    CancelAtPoll cancel(/*rank=*/1, polls);
    InProcessOptions options = OfDtype("fp32");
    *options.run.mutable_mesh() = MakeMesh({.dp = 2, .tp = 2});
    options.run.set_wave_suffixes(1);
    options.edit_hooks = cancel.Hook();
    const auto engine = Make(options);
    ASSERT_TRUE(engine->Load(Verified()).ok());
    const auto answer = engine->Verify();
    EXPECT_FALSE(answer.ok()) << polls;
    EXPECT_TRUE(cancel.cancelled()) << polls;
    cancel.Disarm();
    Step(*engine);
  }
}

TEST_F(VerifyingEngineTest, AGradientThatIsNotFiniteIsAnError) {
  const auto engine = Make(OfDtype("fp32"));
  TrainingRequest request = Verified();
  request.groups[0].mutable_rollouts(0)->set_advantage(std::numeric_limits<double>::infinity());
  ASSERT_TRUE(engine->Load(request).ok());
  const auto answer = engine->Verify();
  EXPECT_TRUE(HasReason(answer.status(), Reason::kNonfiniteGradient)) << answer.status();
}

// Its gradients are a step's that the ranks have voted on.
TEST_F(VerifyingEngineTest, WaitsForTheApplyOfAStep) {
  const auto engine = Make(OfDtype("fp32"));
  ASSERT_TRUE(engine->Load(Request({16, 5})).ok());
  const auto vote = engine->Prepare(0);
  ASSERT_TRUE(vote.ok() && vote->yes());
  EXPECT_TRUE(absl::IsFailedPrecondition(engine->engine().Verify({}, {}).status()));
  ASSERT_TRUE(engine->Apply(0, *vote).ok());
  EXPECT_TRUE(absl::IsNotFound(engine->engine().Verify({}, {}).status())) << "a payload that is not there";
}

}  // namespace
}  // namespace stemma::testing
