// The whole engine on a device that is not the host: the CPU's gradients, and no wait for the device but one per wave.
#include "tests/testing/fake_device.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/model/model_init.h"
#include "tests/testing/in_process.h"
#include "tests/testing/late_copies.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "tests/worker/backend/cuda/attention/fake_flash_calls.h"
#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/cuda/attention/bucketed_calls.h"
#include "worker/backend/cuda/attention/composed_attention_kernels.h"
#include "worker/backend/cuda/attention/flash_attention.h"

namespace stemma::testing {
namespace {

constexpr int64_t kVocab = 97;  // whose rows of logits are padded

// What an operation of the engine waited for the device, by the phase that it reported.
struct Waits {
  std::string phase;
  int64_t count;
};

struct StepRun {
  std::vector<at::Tensor> gradients, weights;  // on the host, after Prepare and after Apply
  LossSums loss;
  std::vector<Waits> waits;
  int64_t waits_of_prepare = 0;
  internal::v1::StepSums sums;
};

// What a step is run with beside its loss.
struct StepSetting {
  v1::Schedule schedule = v1::REUSE;
  bool offload = false;  // tapes of prefixes and optimizer states in host memory
};

// Each start and end of a read of a wave's numbers, since the last clear: 's' and 'r'.
std::string reads;

class NotedRead final : public HostRead {
 public:
  explicit NotedRead(const at::Tensor& device) : read_(StartBlockingRead(device)) { reads += 's'; }
  const at::Tensor& Get() override {
    reads += 'r';
    return read_->Get();
  }

 private:
  const std::unique_ptr<HostRead> read_;
};

class FakeDeviceTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/fake-device";
    std::filesystem::remove_all(directory_);
    const ModelConfig model =
        SyntheticModel({.hidden = 32, .layers = 2, .head_size = 8, .ffn = 48, .vocab = kVocab, .qk_norm = true});
    ASSERT_TRUE(WriteRandomModel(model, {}, directory_).ok());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // A step on `backend`; in chunks and waves, so that there are several of each.
  absl::StatusOr<StepRun> RunOn(Backend backend, const std::string& loss_mode, const StepSetting& setting = {}) {
    InProcessOptions options;
    if (setting.offload) {
      options.run.set_host_memory_bytes(uint64_t{16} << 20);
      options.run.set_optimizer_residency(v1::HOST);
      options.edit_step = [](v1::StepPlan& step) {
        for (v1::Cluster& cluster : *step.mutable_clusters()) cluster.set_offload_prefix(true);
      };
    }
    options.run.set_model(directory_);
    options.run.set_dtype("fp64");
    options.run.set_schedule(setting.schedule);
    options.run.set_wave_suffixes(2);
    options.run.set_head_chunk_tokens(10);
    options.run.set_memory_budget_bytes(uint64_t{1} << 30);
    options.run.set_threads(1);
    StepRun run;
    int64_t seen = 0;
    options.progress = [&](const internal::v1::Heartbeat& heartbeat) {
      run.waits.push_back({heartbeat.phase(), NumSynchronizations() - seen});
      seen = NumSynchronizations();
    };
    auto engine = InProcess::Create(options, std::move(backend));
    if (!engine.ok()) return engine.status();
    TrainingRequest request = SyntheticRequest({17, 1}, {9, 1, 13}, kVocab);
    request.update.mutable_adam()->set_learning_rate(1e-3);
    request.update.mutable_adam()->set_beta1(0.9);
    request.update.mutable_adam()->set_beta2(0.999);
    request.update.mutable_adam()->set_eps(1e-8);
    v1::LossConfig& loss = *request.update.mutable_loss();
    loss.set_loss_mode(loss_mode);
    if (loss_mode == "gspo") {  // with a log-prob pass before, and whole rollouts at the head
      loss.set_clip_ratio_low(0.2);
      loss.set_clip_ratio_high(0.28);
      request.update.mutable_old()->set_from(v1::LogProbSource::WEIGHTS);
      request.update.mutable_old()->set_weights("policy");
    }
    if (absl::Status status = (*engine)->Load(std::move(request)); !status.ok()) return status;
    seen = NumSynchronizations();
    const int64_t before = seen;
    const auto vote = (*engine)->Prepare(0);
    if (!vote.ok()) return vote.status();
    if (!vote->yes()) return absl::InternalError(vote->message());
    run.waits_of_prepare = NumSynchronizations() - before;
    run.sums = vote->sums();
    for (const Parameter& p : (*engine)->weights().parameters) run.gradients.push_back(p.grad.cpu().clone());
    if (absl::Status status = (*engine)->Apply(0, *vote); !status.ok()) return status;
    for (const Parameter& p : (*engine)->weights().parameters) run.weights.push_back(p.weight.cpu().clone());
    return run;
  }

  std::string directory_;
};

// The largest difference of a tensor's elements, as a part of its largest one.
double WorstError(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  double worst = actual.size() == expected.size() ? 0 : INFINITY;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double scale = std::max(expected[i].abs().max().item<double>(), 1e-300);
    const double error = (actual[i] - expected[i]).abs().max().item<double>() / scale;
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

TEST_P(FakeDeviceTest, AStepIsTheCpusAndWaitsOncePerWave) {
  for (const v1::Schedule schedule : {v1::REUSE, v1::DENSE}) {
    const auto cpu = RunOn(MakeCpuBackend(), GetParam(), {schedule});
    ASSERT_TRUE(cpu.ok()) << cpu.status();
    const auto fake = RunOn(MakeFakeDeviceBackend(), GetParam(), {schedule});
    ASSERT_TRUE(fake.ok()) << fake.status();
    // fp64: sums of some hundred terms in another order.
    EXPECT_LE(WorstError(fake->gradients, cpu->gradients), 1e-12);
    EXPECT_LE(WorstError(fake->weights, cpu->weights), 1e-12);
    EXPECT_GT(fake->sums.suffix_s(), 0) << "what operations took is asked once, at the end";
    EXPECT_EQ(fake->sums.prefix_backward_s() > 0, schedule == v1::REUSE);
    // A pass ends with a read of its last wave, which counts to the operation after it: gspo's step has a pass before.
    const int64_t passes = GetParam() == std::string("gspo") ? 2 : 1;
    int64_t waits = 0, waits_of_prefixes = 0;
    for (const Waits& operation : fake->waits) {
      EXPECT_LE(operation.count, 1) << operation.phase;
      waits += operation.count;
      if (operation.phase != "suffix") waits_of_prefixes += operation.count;
    }
    EXPECT_LE(waits_of_prefixes, passes - 1);
    EXPECT_GT(waits, 1) << "several waves";
    // Beside them, one at the end of the step's pass, and one for the gradient norm.
    EXPECT_LE(fake->waits_of_prepare, waits + 2);
  }
}

// A library of attention on the device: it may follow pointers there, as its kernels do, and nothing around it may.
class FlashOnFakeDevice final : public worker::cuda::FlashCalls {
 public:
  bool Takes(at::ScalarType dtype, int64_t head_size) const override { return fake_.Takes(dtype, head_size); }
  worker::cuda::CallOutput Forward(const worker::cuda::AttentionCall& call) const override {
    const OpenFakeMemory open;
    return fake_.Forward(call);
  }
  worker::cuda::CallGradients Backward(const worker::cuda::AttentionCall& call,
                                       const worker::cuda::CallBackward& saved) const override {
    const OpenFakeMemory open;
    return fake_.Backward(call, saved);
  }
  int64_t count() const { return static_cast<int64_t>(fake_.asked().size()); }

 private:
  const FakeFlashCalls fake_;
};

// The CUDA backend's attention, with all that stands between the engine and the libraries.
TEST_P(FakeDeviceTest, AStepOverFlashAttentionIsTheCpusAndWaitsOncePerWave) {
  const FlashOnFakeDevice packed, dense;
  const worker::cuda::BucketedCalls bucketed(dense);
  worker::cuda::FlashAttentionOptions options{.kernels = worker::cuda::ComposedAttentionKernels(),
                                              .num_multiprocessors = 4};
  options.dense = &bucketed;
  options.flops_of_plans = 1;  // some calls come before a plan pays
  for (const bool causal : {false, true}) {
    options.admitted.Admit({.family = {4, 2, 8, at::kDouble, causal},
                            .max_batch = 4,
                            .min_rows = 128,
                            .max_rows = 128,
                            .min_keys = 1,
                            .max_keys = 64});
  }
  for (const v1::Schedule schedule : {v1::REUSE, v1::DENSE}) {
    const auto cpu = RunOn(MakeCpuBackend(), GetParam(), {schedule});
    Backend backend = MakeFakeDeviceBackend();
    backend.attention = std::make_shared<worker::cuda::FlashAttention>(packed, options);
    const auto fake = RunOn(std::move(backend), GetParam(), {schedule});
    ASSERT_TRUE(cpu.ok() && fake.ok()) << cpu.status() << fake.status();
    EXPECT_LE(WorstError(fake->gradients, cpu->gradients), 1e-12);
    EXPECT_LE(WorstError(fake->weights, cpu->weights), 1e-12);
    for (const Waits& operation : fake->waits) EXPECT_LE(operation.count, 1) << operation.phase;
  }
  EXPECT_GT(packed.count(), 0);
  EXPECT_GT(dense.count(), 0);
}

TEST_P(FakeDeviceTest, AWavesNumbersAreReadWhenTheNextWavesAreOnTheirWay) {
  Backend backend = MakeFakeDeviceBackend();
  backend.start_read = [](const at::Tensor& device) {
    return std::unique_ptr<HostRead>(std::make_unique<NotedRead>(device));
  };
  reads.clear();
  const auto run = RunOn(std::move(backend), GetParam());
  ASSERT_TRUE(run.ok()) << run.status();
  // Six rollouts, two to a wave: three waves. Both passes of gspo have them.
  const std::string pass = "ssrsrr";
  EXPECT_EQ(reads, GetParam() == std::string("gspo") ? pass + pass : pass);
}

TEST_P(FakeDeviceTest, WhatIsOffTheDeviceComesBackBehindItsCopies) {
  const auto cpu = RunOn(MakeCpuBackend(), GetParam());
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  const int64_t before = LateCopyEngine::NumAwaited();
  const auto fake = RunOn(MakeFakeDeviceBackend(), GetParam(), {.offload = true});
  ASSERT_TRUE(fake.ok()) << fake.status();
  EXPECT_LE(WorstError(fake->gradients, cpu->gradients), 1e-12);
  EXPECT_LE(WorstError(fake->weights, cpu->weights), 1e-12);
  EXPECT_GT(LateCopyEngine::NumAwaited() - before, 4) << "tapes and states, out and in";
  for (const Waits& operation : fake->waits) EXPECT_LE(operation.count, 1) << operation.phase;
}

class ToldDeviceTest : public FakeDeviceTest {};

TEST_F(ToldDeviceTest, AWorkerTellsOfItsMemoryAndOfKernelsThatAreOff) {
  InProcessOptions options;
  options.run.set_model(directory_);
  options.run.set_dtype("fp64");
  options.run.set_memory_budget_bytes(uint64_t{1} << 30);
  Backend backend = MakeFakeDeviceBackend();
  backend.free_bytes = [] { return int64_t{12345}; };
  backend.kernels_off = {{"loss", "is off by 1"}, {"attention", "fails"}};
  const auto engine = InProcess::Create(options, std::move(backend));
  ASSERT_TRUE(engine.ok()) << engine.status();
  const internal::v1::Ready& ready = (*engine)->engine().ready();
  EXPECT_EQ(ready.memory_free_bytes(), 12345u) << "the device's, not the host's";
  EXPECT_GT(ready.weights_bytes(), 0u);
  ASSERT_EQ(ready.kernels_off_size(), 2);
  EXPECT_EQ(ready.kernels_off(0).kernel(), "loss");
  EXPECT_EQ(ready.kernels_off(0).reason(), "is off by 1");
  EXPECT_EQ(ready.kernels_off(1).kernel(), "attention");
}

INSTANTIATE_TEST_SUITE_P(Losses, FakeDeviceTest, ::testing::Values("gpg", "gspo"),
                         [](const auto& param) { return std::string(param.param); });

// Negative controls: what the fake device is there to see.

void NormThatReads(const RmsNormForwardOperands& args) {
  CHECK_GE(args.x_TD.abs().max().item<double>(), 0);
  ComposedKernels().rms_norm_forward(args);
}

class FakeDeviceControlTest : public FakeDeviceTest {};

TEST_F(FakeDeviceControlTest, ANumberReadInALayerIsSeen) {
  Backend backend = MakeFakeDeviceBackend();
  backend.kernels.rms_norm_forward = NormThatReads;
  const auto run = RunOn(std::move(backend), "gpg");
  ASSERT_TRUE(run.ok()) << run.status();
  const auto most = std::max_element(run->waits.begin(), run->waits.end(),
                                     [](const Waits& a, const Waits& b) { return a.count < b.count; });
  EXPECT_GT(most->count, 1);
}

void NormOfAHostTensor(const RmsNormForwardOperands& args) {
  const at::Tensor ones = at::tensor(std::vector<double>(static_cast<size_t>(args.weight_D.numel()), 1.0));
  const at::Tensor weight_D = args.weight_D * ones;
  ComposedKernels().rms_norm_forward({args.x_TD, weight_D, args.y_TD, args.rstd_T, args.eps});
}

TEST_F(FakeDeviceControlTest, AnAllocationWithoutADeviceIsSeen) {
  Backend backend = MakeFakeDeviceBackend();
  backend.kernels.rms_norm_forward = NormOfAHostTensor;
  const auto run = RunOn(std::move(backend), "gpg");
  // LibTorch sees it itself where both go through one loop of its own; the fake device elsewhere.
  EXPECT_FALSE(run.ok());
  EXPECT_NE(run.status().message().find("device"), std::string::npos) << run.status();
}

TEST_F(FakeDeviceControlTest, AComputationThatDoesNotWaitForItsCopiesIsSeen) {
  const auto cpu = RunOn(MakeCpuBackend(), "gpg");
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  Backend backend = MakeFakeDeviceBackend();
  backend.make_copy_engine = [] { return std::unique_ptr<CopyEngine>(std::make_unique<UnorderedCopyEngine>()); };
  const auto fake = RunOn(std::move(backend), "gpg", {.offload = true});
  EXPECT_FALSE(fake.ok() && WorstError(fake->gradients, cpu->gradients) <= 1e-12);
}

TEST_F(FakeDeviceControlTest, AHostLoopOverDeviceMemoryIsSeen) {
  const at::Tensor x = at::ones({4}, MakeFakeDeviceBackend().options(at::kDouble));
  EXPECT_EQ(x.sum().item<double>(), 4);
  EXPECT_DEATH({ std::printf("%f", *x.const_data_ptr<double>()); }, "");
}

}  // namespace
}  // namespace stemma::testing
