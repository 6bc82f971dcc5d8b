// The formula of common/cost/state_bytes.h against the bytes that a loaded model takes, counted by the allocator at the
// start of a step: every dtype and family, optimizer states here and there.
#include "common/cost/state_bytes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "common/model/model_init.h"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/memory/cpu_allocator.h"

namespace stemma::testing {
namespace {

constexpr double kTolerance = 0.005;  // small tensors are rounded up to 64 bytes each

struct Setting {
  std::string name, dtype;
  bool qk_norm = false, tied = false;
  v1::OptimizerResidency residency = v1::DEVICE;
};

class StateBytesTest : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/state-" + GetParam().name;
    std::filesystem::remove_all(directory_);
    ASSERT_TRUE(WriteRandomModel(Model(), {}, directory_).ok());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  static ModelConfig Model() {
    ModelConfig config = SyntheticModel({.qk_norm = GetParam().qk_norm});
    config.tie_word_embeddings = GetParam().tied;
    return config;
  }

  std::string directory_;
};

TEST_P(StateBytesTest, AreThoseOfTheLoadedModelBeforeAndAfterAStep) {
  InstallCpuAllocator();
  const auto others = static_cast<double>(CpuMemoryStats().current_bytes);  // of the process
  InProcessOptions options;
  options.run.set_model(directory_);
  options.run.set_dtype(GetParam().dtype);
  options.run.set_head_chunk_tokens(128);
  options.run.set_threads(1);
  options.run.set_optimizer_residency(GetParam().residency);
  auto engine = InProcess::Create(options, MakeCpuBackend());
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto planned = static_cast<double>(
      StateBytesOf(Model(), RunDtypeOf(GetParam().dtype)).device(options.run.optimizer_residency()));
  for (int step = 0; step < 2; ++step) {
    TrainingRequest request = SyntheticRequest({16}, {8, 8}, Model().vocab_size);
    request.update.mutable_adam()->set_learning_rate(1e-3);
    request.update.mutable_adam()->set_eps(1e-8);
    ASSERT_TRUE((*engine)->Load(std::move(request)).ok());
    const auto vote = (*engine)->Prepare(0);
    ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
    EXPECT_NEAR(static_cast<double>(vote->sums().state_bytes()) - others, planned, kTolerance * planned)
        << "step " << step;
    ASSERT_TRUE((*engine)->Apply(0, *vote).ok());
  }
}

// Each rank's buffers of the exchange are there from the load on; rounding to 16 elements is less than 1 % here.
TEST_P(StateBytesTest, OfRanksAreThoseOfTheLoadedModels) {
  InstallCpuAllocator();
  const auto others = static_cast<double>(CpuMemoryStats().current_bytes);
  for (const uint32_t ranks : {2U, 3U}) {
    InProcessOptions options;
    options.run.set_model(directory_);
    options.run.set_dtype(GetParam().dtype);
    options.run.set_head_chunk_tokens(128);
    options.run.set_threads(1);
    options.run.set_optimizer_residency(GetParam().residency);
    options.run.mutable_mesh()->set_dp(ranks);
    auto engine = InProcess::Create(options, MakeCpuBackend());
    ASSERT_TRUE(engine.ok()) << engine.status();
    const StateBytes state = StateBytesOf(Model(), options.run);
    const auto planned = static_cast<double>(ranks * state.device(GetParam().residency));
    EXPECT_NEAR(static_cast<double>(CpuMemoryStats().current_bytes) - others, planned, 0.01 * planned) << ranks;
    EXPECT_GT(static_cast<double>(state.exchange), 0.1 * planned / ranks) << "control: it would be missed";
  }
}

std::vector<Setting> Settings() {
  std::vector<Setting> settings;
  for (const char* dtype : {"fp32", "bf16", "fp64"}) {
    for (const bool qwen : {false, true}) {
      for (const v1::OptimizerResidency residency : {v1::DEVICE, v1::HOST}) {
        const std::string name =
            std::string(dtype) + (qwen ? "_qwen3_tied" : "_llama") + (residency == v1::HOST ? "_host" : "_device");
        settings.push_back({name, dtype, qwen, qwen, residency});
      }
    }
  }
  return settings;
}

INSTANTIATE_TEST_SUITE_P(All, StateBytesTest, ::testing::ValuesIn(Settings()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace stemma::testing
