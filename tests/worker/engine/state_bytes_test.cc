// The formula of common/cost/state_bytes.h against the bytes that a loaded model takes, counted by the allocator at the
// start of a step: every dtype and family, optimizer states here and there.
#include "common/cost/state_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mesh.h"
#include "common/model/model_init.h"
#include "glog/logging.h"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/memory/cpu_allocator.h"

namespace stemma::testing {
namespace {

constexpr double kStateTolerance = 0.005;  // small tensors are rounded up to 64 bytes each

struct StateSetting {
  std::string name, dtype;
  bool qk_norm = false, tied = false;
  v1::OptimizerResidency residency = v1::DEVICE;
};

class StateBytesTest : public ::testing::TestWithParam<StateSetting> {
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
    EXPECT_NEAR(static_cast<double>(vote->sums().state_bytes()) - others, planned, kStateTolerance * planned)
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

// Models and meshes that are drawn: sizes that ranks share evenly, vocabularies that they do not, K/V heads that
// several of them hold.
struct DrawnRank {
  ModelConfig model;
  v1::RunConfig run;

  std::string text() const {
    return absl::StrCat(model.model_type, " D ", model.hidden_size, " L ", model.num_layers, " H ", model.num_heads,
                        " K ", model.num_kv_heads, " F ", model.ffn_size, " X ",
                        model.experts ? model.experts->count : 0, " V ", model.vocab_size, " ", run.ShortDebugString());
  }
};

// A third of the models has some.
std::optional<Experts> DrawExperts(std::mt19937& random) {
  if (random() % 3 != 0) return std::nullopt;
  return Experts{.count = 1 + static_cast<int64_t>(random() % 9), .per_token = 1};
}

DrawnRank DrawRank(std::mt19937& random, const std::vector<uint32_t>& dp_sizes) {
  const auto of = [&]<typename T>(const std::vector<T>& values) { return values[random() % values.size()]; };
  const auto tp = of(std::vector<uint32_t>{2, 3, 4});
  const int64_t kv_heads = of(std::vector<int64_t>{1, tp, 2 * tp}), heads = std::lcm(kv_heads, int64_t{tp});
  DrawnRank drawn;
  drawn.model = SyntheticModel({.hidden = of(std::vector<int64_t>{64, 128, 192}),
                                .layers = of(std::vector<int64_t>{1, 3, 5}),
                                .heads = heads * of(std::vector<int64_t>{1, 2}),
                                .kv_heads = kv_heads,
                                .head_size = 16,
                                .ffn = 48 * of(std::vector<int64_t>{2, 5}),
                                .vocab = of(std::vector<int64_t>{1001, 1002, 5003}),
                                .qk_norm = random() % 2 == 0,
                                .experts = DrawExperts(random)});
  drawn.model.tie_word_embeddings = random() % 2 == 0;
  drawn.model.max_positions = 512;
  drawn.run.set_dtype(of(std::vector<std::string>{"fp32", "bf16", "fp64"}));
  drawn.run.set_threads(1);
  drawn.run.set_head_chunk_tokens(128);
  drawn.run.set_optimizer_residency(random() % 2 == 0 ? v1::DEVICE : v1::HOST);
  drawn.run.mutable_mesh()->set_tp(tp);
  if (drawn.model.experts && random() % 2 == 0) {  // ranks with experts of their own
    drawn.model.experts->count = tp * of(std::vector<int64_t>{1, 2, 5});
    drawn.run.mutable_mesh()->set_ep(tp == 4 ? of(std::vector<uint32_t>{2, 4}) : tp);
  }
  drawn.run.mutable_mesh()->set_dp(of(dp_sizes));
  if (random() % 2 == 0) drawn.run.set_shard_parameters(v1::SHARD_PARAMETERS_ON);
  return drawn;
}

// The bytes that the ranks of a drawn run take; one that plays alone is the largest.
double MeasuredBytes(const DrawnRank& drawn, bool lone_rank) {
  const std::string directory = ::testing::TempDir() + "/state-drawn";
  std::filesystem::remove_all(directory);
  CHECK(WriteRandomModel(drawn.model, {}, directory).ok());
  const int64_t others = CpuMemoryStats().current_bytes;
  InProcessOptions options;
  options.run = drawn.run;
  options.run.set_model(directory);
  options.lone_rank = lone_rank;
  const auto engine = InProcess::Create(options, MakeCpuBackend());
  CHECK(engine.ok()) << engine.status();
  std::filesystem::remove_all(directory);
  return static_cast<double>(CpuMemoryStats().current_bytes - others);
}

TEST(StateBytesOfDrawnRanksTest, AreThoseOfTheLoadedModel) {
  InstallCpuAllocator();
  const uint32_t seed = GTEST_FLAG_GET(random_seed) > 0 ? static_cast<uint32_t>(GTEST_FLAG_GET(random_seed)) : 1;
  std::mt19937 random(seed);
  double worst = 0;
  for (int i = 0; i < 20; ++i) {
    const bool lone_rank = i % 2 == 0;
    const DrawnRank drawn = DrawRank(random, lone_rank ? std::vector<uint32_t>{1} : std::vector<uint32_t>{1, 2, 3});
    SCOPED_TRACE(absl::StrCat("--gtest_random_seed=", seed, " case ", i, ": ", drawn.text()));
    const auto rank = static_cast<double>(StateBytesOf(drawn.model, drawn.run).device(drawn.run.optimizer_residency()));
    const double planned = lone_rank ? rank : NumRanks(drawn.run.mesh()) * rank;
    const double measured = MeasuredBytes(drawn, lone_rank);
    EXPECT_NEAR(measured / planned, 1, 0.01) << measured;
    worst = std::max(worst, std::abs(measured / planned - 1));
  }
  std::printf("state bytes of drawn ranks: %.2f %% off at most\n", 100 * worst);
}

std::vector<StateSetting> StateSettings() {
  std::vector<StateSetting> settings;
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

INSTANTIATE_TEST_SUITE_P(All, StateBytesTest, ::testing::ValuesIn(StateSettings()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace stemma::testing
