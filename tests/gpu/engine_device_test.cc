// Whole steps on the device against plain formulas in fp64 on the CPU: every parameter's gradient and every log-prob,
// in fp32 and bf16, under every memory policy, with prefixes in host memory, and from step to step.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/device_steps.h"
#include "tests/gpu/test_device.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/synthetic.h"

namespace stemma::testing {
namespace {

// fp32 rounds each operation to 2^-24; a gradient here is the end of some forty operations with sums of some hundred
// terms of mixed sign. On a CPU 4e-7 was seen; fast exponentials of the device cost a digit.
constexpr double kFp32 = 1e-5;
// bf16 rounds to 2^-9 = 0.002; of errors that come from it, some tens add up like a random walk.
constexpr double kBf16Least = 1.0 / 1024, kBf16Most = 1.0 / 12;

const SmallModel kModels[] = {
    {"llama", 64, 251}, {"llama", 128, 256}, {"qwen2", 64, 256}, {"qwen3", 128, 256}, {"qwen3", 64, 251}};

// Ragged responses behind prompts of several lengths, one of them a single token.
TrainingRequest RaggedRequest(int64_t vocab) { return SyntheticRequest({150, 1, 67}, {40, 1, 23, 9}, vocab); }

double Worst(const std::map<std::string, double>& errors) {
  double worst = 0;
  for (const auto& [name, error] : errors) worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  return worst;
}

std::string NameOfModel(const SmallModel& model) {
  return std::string(model.family) + std::to_string(model.head_size) + "v" + std::to_string(model.vocab);
}

StepNumbers RunOn(const ModelFolder& model, const Way& way, const TrainingRequest& request) {
  return RunStep(*MakeSteps(model, way, DeviceBackend(way.dtype, model.config())), request);
}

class EngineDeviceTest : public DeviceTest, public ::testing::WithParamInterface<SmallModel> {
 protected:
  static StepNumbers Run(const ModelFolder& model, const Way& way, const TrainingRequest& request) {
    return RunOn(model, way, request);
  }
};

void ExpectPlainFormulas(const SmallModel& small) {
  const ModelFolder model(small, 1);
  const TrainingRequest request = RaggedRequest(small.vocab);
  const StepNumbers truth = TruthOf(model, request);
  for (const v1::Schedule schedule : {v1::REUSE, v1::DENSE}) {
    for (const uint32_t wave_suffixes : {0u, 1u, 3u}) {
      const Way way = {.schedule = schedule, .wave_suffixes = wave_suffixes};
      const StepNumbers step = RunOn(model, way, request);
      for (const auto& [name, error] : ErrorsOf(step, truth)) EXPECT_LT(error, kFp32) << name << ", " << way.Text();
      EXPECT_NEAR(step.sums.policy_loss(), truth.sums.policy_loss(), kFp32) << way.Text();
      EXPECT_EQ(step.sums.loss_tokens(), truth.sums.loss_tokens());
      EXPECT_EQ(step.sums.logical_rows(), truth.sums.logical_rows());
    }
  }
}

TEST_P(EngineDeviceTest, AStepInFp32IsThatOfPlainFormulasInFp64) { ExpectPlainFormulas(GetParam()); }

// In bf16 some rows go to other experts than in fp64, by chance: there is no bound to hold a step to.
class ExpertsDeviceTest : public DeviceTest {};
TEST_F(ExpertsDeviceTest, AStepInFp32IsThatOfPlainFormulasInFp64) { ExpectPlainFormulas({"qwen3_moe", 128, 256}); }

// Prompts whose keys a library takes that takes whole multiples of 128: all of 128, or the first of 1,199.
TrainingRequest LongRequest(int64_t vocab) {
  const std::vector<int64_t> prompts = OnGpu() ? std::vector<int64_t>{129, 1200} : std::vector<int64_t>{129};
  return SyntheticRequest(prompts, {40, 1, 23}, vocab);
}

TEST_P(EngineDeviceTest, AStepInBf16RoundsAsBf16Does) {
  for (const bool is_long : {false, true}) {
    const ModelFolder model(GetParam(), 1);
    const TrainingRequest request = is_long ? LongRequest(GetParam().vocab) : RaggedRequest(GetParam().vocab);
    const StepNumbers truth = TruthOf(model, request);
    const auto dense = ErrorsOf(Run(model, {.dtype = "bf16", .schedule = v1::DENSE}, request), truth);
    EXPECT_GT(Worst(dense), kBf16Least) << "a run that is nearly exact is none in bf16";
    EXPECT_LT(Worst(dense), kBf16Most);
    const auto reuse = ErrorsOf(Run(model, {.dtype = "bf16"}, request), truth);
    for (const auto& [name, error] : reuse) {
      // One draw of roundings against another one: of a single parameter, factors of two and more occur by chance.
      EXPECT_LT(error, 3 * dense.at(name) + kBf16Least) << name << (is_long ? " of long prompts" : "");
    }
  }
}

TEST_P(EngineDeviceTest, MemoryPoliciesChangeNoNumber) {
  const ModelFolder model(GetParam(), 2);
  const TrainingRequest request = RaggedRequest(GetParam().vocab);
  const StepNumbers truth = TruthOf(model, request);
  const double kept = Worst(ErrorsOf(Run(model, {.dtype = "bf16"}, request), truth));
  std::vector<Way> ways;
  for (const v1::TapePolicy policy : {v1::S1, v1::S2, v1::S3, v1::S4}) {
    ways.push_back({.prefix = policy, .suffix = policy});
    ways.push_back({.prefix = policy, .block_rows = 60});
    ways.push_back({.prefix = policy, .offload = true});
    ways.push_back({.prefix = policy, .suffix = policy, .offload = true, .headroom_bytes = 1 << 20});
  }
  ways.push_back({.offload = true, .headroom_bytes = uint64_t{1} << 30});
  ways.push_back({.prefix = v1::S5, .suffix = v1::S2, .block_rows = 60});
  for (Way way : ways) {
    // Recomputed numbers are the same bits where kernels are; attention's backward may add in any order, so that what
    // is asked is no more error than there is anyway.
    const StepNumbers fp32 = Run(model, way, request);
    EXPECT_LT(Worst(ErrorsOf(fp32, truth)), kFp32) << way.Text();
    EXPECT_EQ(fp32.sums.offload_out_bytes() > 0, way.offload) << way.Text();
    way.dtype = "bf16";
    EXPECT_LT(Worst(ErrorsOf(Run(model, way, request), truth)), 1.2 * kept) << way.Text();
  }
}

TEST_P(EngineDeviceTest, AForwardOnlyPassGivesTheLogProbsOfTheStep) {
  const ModelFolder model(GetParam(), 3);
  TrainingRequest request = RaggedRequest(GetParam().vocab);
  request.update.mutable_loss()->set_loss_mode("vanilla");
  request.update.mutable_loss()->set_clip_ratio_low(0.2);
  request.update.mutable_loss()->set_clip_ratio_high(0.2);
  request.update.mutable_old()->set_from(v1::LogProbSource::WEIGHTS);
  request.update.mutable_old()->set_weights("policy");
  for (const char* dtype : {"fp32", "bf16"}) {
    const StepNumbers step = Run(model, {.dtype = dtype}, request);
    const auto tokens = static_cast<double>(step.sums.loss_tokens());
    // The same kernels on the same rows: of the mean difference even bf16's rounding leaves little.
    EXPECT_LT(std::abs(step.sums.neg_log_ratio_nats()) / tokens, dtype == std::string("fp32") ? kFp32 : 1e-2) << dtype;
    EXPECT_GT(tokens, 0);
  }
}

// A loss far from the truth must not pass for rounding.
TEST_P(EngineDeviceTest, ControlAnotherRequestIsSeen) {
  const ModelFolder model(GetParam(), 1);
  const StepNumbers truth = TruthOf(model, RaggedRequest(GetParam().vocab));
  TrainingRequest other = RaggedRequest(GetParam().vocab);
  other.groups[0].mutable_rollouts(0)->set_advantage(other.groups[0].rollouts(0).advantage() + 0.25);
  EXPECT_GT(Worst(ErrorsOf(Run(model, {}, other), truth)), 100 * kFp32);
}

// The gradients of one run are kept on the device while the other one makes its own.
TEST_P(EngineDeviceTest, AVerificationFindsTheRunsAsFarApartAsRoundingPutsThem) {
  const ModelFolder model(GetParam(), 1);
  TrainingRequest request = RaggedRequest(GetParam().vocab);
  request.kind = TrainingRequest::Kind::kVerify;
  for (const std::string dtype : {"fp32", "bf16"}) {
    const auto steps = testing::MakeSteps(model, {.dtype = dtype}, DeviceBackend(dtype, model.config()));
    ASSERT_THAT(steps->Load(request), IsOk());
    const auto answer = steps->Verify();
    ASSERT_THAT(answer, IsOk());
    const double error = answer->error_norm() / answer->gradient_norm();
    EXPECT_GT(error, 0) << dtype;
    EXPECT_LT(error, dtype == "fp32" ? kFp32 : kBf16Most) << dtype;
    EXPECT_EQ(answer->log_prob_tokens(), 3U * (40 + 1 + 23 + 9)) << dtype;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineDeviceTest, ::testing::ValuesIn(kModels),
                         [](const auto& of) { return NameOfModel(of.param); });

class EngineOverStepsTest : public DeviceTest {};

constexpr SmallModel kLlama = {"llama", 64, 256};

TrainingRequest TrainedRequest() {
  TrainingRequest request = RaggedRequest(kLlama.vocab);
  v1::AdamParams& adam = *request.update.mutable_adam();
  adam.set_learning_rate(1e-3);
  adam.set_beta1(0.9);
  adam.set_beta2(0.999);
  adam.set_eps(1e-3);  // far above the gradients' rounding, which a division by tiny moments would blow up
  return request;
}

void MakeSteps(InProcess& steps, int count) {
  for (int i = 0; i < count; ++i) {
    ASSERT_THAT(steps.Load(TrainedRequest()), IsOk());
    const auto vote = steps.Prepare(0);
    ASSERT_THAT(vote, IsOk());
    ASSERT_TRUE(vote->yes()) << vote->message();
    ASSERT_THAT(steps.Apply(0, *vote), IsOk());
  }
}

TEST_F(EngineOverStepsTest, OptimizerStatesInHostMemoryGiveTheSameWeights) {
  const ModelFolder model(kLlama, 4);
  for (const std::string dtype : {"fp32", "bf16"}) {
    const auto device = testing::MakeSteps(model, {.dtype = dtype}, DeviceBackend(dtype, model.config()));
    const auto host =
        testing::MakeSteps(model, {.dtype = dtype, .residency = v1::HOST}, DeviceBackend(dtype, model.config()));
    MakeSteps(*device, 3);
    MakeSteps(*host, 3);
    for (size_t i = 0; i < device->weights().parameters.size(); ++i) {
      const at::Tensor a = device->weights().parameters[i].master.to(at::kCPU);
      const at::Tensor b = host->weights().parameters[i].master.to(at::kCPU);
      // Three updates of at most 1e-3 each; in bf16 one step's rounding changes the gradients of the next by a percent.
      EXPECT_LT((a - b).abs().max().item<double>(), dtype == "fp32" ? 1e-6 : 1e-4)
          << device->weights().parameters[i].name << ", " << dtype;
    }
  }
}

TEST_F(EngineOverStepsTest, MemoryDoesNotGrowFromStepToStep) {
  const ModelFolder model(kLlama, 5);
  const Backend backend = DeviceBackend("bf16", model.config());
  const auto steps = testing::MakeSteps(model, {.dtype = "bf16", .prefix = v1::S2, .offload = true}, backend);
  MakeSteps(*steps, 3);
  const MemoryStats before = backend.memory_stats();
  MakeSteps(*steps, 5);
  const MemoryStats after = backend.memory_stats();
  EXPECT_EQ(after.current_bytes, before.current_bytes);
  if (OnGpu()) {
    EXPECT_LE(after.current_bytes + after.cached_bytes, before.current_bytes + before.cached_bytes);
  }
}

}  // namespace
}  // namespace stemma::testing
