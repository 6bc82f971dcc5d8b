// A start with the self-check: what is kept, what a second start does, and the engine on what was admitted.
#include "worker/backend/self_check/run_self_check.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/model/model_init.h"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "tests/worker/backend/self_check/broken_backend.h"
#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

constexpr int64_t kVocab = 70;
int logits_calls = 0;

void CountedLogits(const LogitsOperands& args) {
  ++logits_calls;
  ComposedKernels().logits(args);
}

class RunSelfCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/run-self-check";
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    logits_calls = 0;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  SelfCheckOptions Options(Backend candidate) const {
    candidate.kernels.logits = CountedLogits;
    return {.candidate = std::move(candidate),
            .reference = {.kernels = ComposedKernels(), .attention = MakeComposedAttention()},
            .dtype = at::kFloat,
            .fingerprint = {.device_name = "CPU",
                            .dtype = "fp32",
                            .shape = {.num_heads = 4, .num_kv_heads = 2, .head_size = 8}},
            .data_directory = directory_,
            .large_cases = false};
  }

  std::string directory_;
};

TEST_F(RunSelfCheckTest, ASecondStartOnTheSameReadsWhatTheFirstFound) {
  Backend backend = MakeCpuBackend();
  Break("loss", Fault::kScaled, backend);
  const Backend first = RunSelfCheck(Options(backend));
  const int calls = logits_calls;
  EXPECT_GT(calls, 0);
  const Backend second = RunSelfCheck(Options(backend));
  EXPECT_EQ(logits_calls, calls) << "nothing ran";
  ASSERT_EQ(first.kernels_off.size(), 1u);
  ASSERT_EQ(second.kernels_off.size(), 1u);
  EXPECT_EQ(first.kernels_off[0].kernel, "loss");
  EXPECT_EQ(second.kernels_off[0].reason, first.kernels_off[0].reason);
  EXPECT_EQ(second.kernels.loss, ComposedKernels().loss);
}

// cuDNN or cuBLAS may find no memory while another process still holds the device.
TEST_F(RunSelfCheckTest, AKernelThatThrewIsTriedAgainAtTheNextStart) {
  Backend failing = MakeCpuBackend();
  Break("loss", Fault::kThrows, failing);
  const Backend first = RunSelfCheck(Options(failing));
  ASSERT_EQ(first.kernels_off.size(), 1u);
  EXPECT_EQ(first.kernels_off[0].kernel, "loss");
  EXPECT_THAT(RunSelfCheck(Options(MakeCpuBackend())).kernels_off, IsEmpty());
  const int calls = logits_calls;
  EXPECT_THAT(RunSelfCheck(Options(MakeCpuBackend())).kernels_off, IsEmpty());
  EXPECT_EQ(logits_calls, calls) << "what was right is kept";
}

TEST_F(RunSelfCheckTest, AnotherDriverChecksAgain) {
  SelfCheckOptions options = Options(MakeCpuBackend());
  RunSelfCheck(options);
  const int calls = logits_calls;
  options.fingerprint.driver = "newer";
  EXPECT_THAT(RunSelfCheck(options).kernels_off, IsEmpty());
  EXPECT_EQ(logits_calls, 2 * calls);
}

TEST_F(RunSelfCheckTest, AStartNeedsNoDataDirectory) {
  std::filesystem::remove_all(directory_);
  std::ofstream(directory_) << "no directory";
  EXPECT_THAT(RunSelfCheck(Options(MakeCpuBackend())).kernels_off, IsEmpty());
  SelfCheckOptions none = Options(MakeCpuBackend());
  none.data_directory.clear();
  EXPECT_THAT(RunSelfCheck(none).kernels_off, IsEmpty());
}

// Gradients and weights of one step.
std::vector<at::Tensor> Step(const std::string& model, Backend backend) {
  InProcessOptions options;
  options.run.set_model(model);
  options.run.set_dtype("fp32");
  options.run.set_schedule(v1::REUSE);
  options.run.set_wave_suffixes(2);
  options.run.set_head_chunk_tokens(10);
  options.run.set_memory_budget_bytes(uint64_t{1} << 30);
  options.run.set_threads(1);
  auto engine = InProcess::Create(options, std::move(backend));
  EXPECT_TRUE(engine.ok()) << engine.status();
  TrainingRequest request = SyntheticRequest({17, 1}, {9, 1, 13}, kVocab);
  request.update.mutable_loss()->set_loss_mode("gpg");
  request.update.mutable_adam()->set_learning_rate(1e-3);
  request.update.mutable_adam()->set_eps(1e-8);  // rows of tokens that do not come have no gradient
  EXPECT_TRUE((*engine)->Load(std::move(request)).ok());
  const auto vote = (*engine)->Prepare(0);
  EXPECT_TRUE(vote.ok() && vote->yes()) << vote.status() << vote->message();
  std::vector<at::Tensor> tensors;
  for (const Parameter& p : (*engine)->weights().parameters) tensors.push_back(p.grad.clone());
  EXPECT_TRUE((*engine)->Apply(0, *vote).ok());
  for (const Parameter& p : (*engine)->weights().parameters) tensors.push_back(p.weight.clone());
  return tensors;
}

// A NaN equals nothing.
bool AreEqual(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!at::equal(a[i], b[i])) return false;
  }
  return true;
}

class EngineAfterTheCheckTest : public RunSelfCheckTest {
 protected:
  void SetUp() override {
    RunSelfCheckTest::SetUp();
    model_ = directory_ + "/model";
    const ModelConfig model = SyntheticModel({.hidden = 32,
                                              .layers = 2,
                                              .heads = 4,
                                              .kv_heads = 2,
                                              .head_size = 8,
                                              .ffn = 48,
                                              .vocab = kVocab,
                                              .qk_norm = true});
    ASSERT_TRUE(WriteRandomModel(model, {}, model_).ok());
  }
  std::string model_;
};

// Bit for bit: the same operations run in the same order.
TEST_F(EngineAfterTheCheckTest, AStepIsThatOfPlainOperationsWhateverWasBroken) {
  const std::vector<at::Tensor> expected = Step(model_, MakeComposedBackend());
  for (const std::string& kernel : CheckedKernels()) {
    Backend broken = MakeComposedBackend();
    ASSERT_TRUE(Break(kernel, Fault::kScaled, broken));
    SelfCheckOptions options = Options(broken);
    options.candidate = broken;
    options.data_directory.clear();
    const Backend admitted = RunSelfCheck(options);
    EXPECT_FALSE(admitted.kernels_off.empty()) << kernel;
    EXPECT_TRUE(AreEqual(Step(model_, admitted), expected)) << kernel;
  }
}

// Negative control: the same comparison sees a kernel that was not checked.
TEST_F(EngineAfterTheCheckTest, AStepWithoutTheCheckIsAnother) {
  Backend broken = MakeComposedBackend();
  ASSERT_TRUE(Break("swiglu_forward", Fault::kScaled, broken));
  EXPECT_FALSE(AreEqual(Step(model_, broken), Step(model_, MakeComposedBackend())));
}

TEST_F(EngineAfterTheCheckTest, AStepWithEveryKernelOffIsThatOfPlainOperations) {
  Backend broken = MakeCpuBackend();
  for (const std::string& kernel : CheckedKernels()) ASSERT_TRUE(Break(kernel, Fault::kThrows, broken));
  SelfCheckOptions options = Options(broken);
  options.candidate = broken;
  const Backend admitted = RunSelfCheck(options);
  std::vector<std::string> off;
  for (const KernelOff& one : admitted.kernels_off) off.push_back(one.kernel);
  EXPECT_THAT(off, ElementsAreArray(CheckedKernels()));
  EXPECT_TRUE(AreEqual(Step(model_, admitted), Step(model_, MakeComposedBackend())));
}

}  // namespace
}  // namespace stemma::testing
