// Whole steps over the CUDA attention's split, whose library is the fake: what a GPU's engine asks of attention in the
// three phases, in the dense schedule, in blocks and under every policy, with the CPU's gradients.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/model/model_init.h"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "tests/worker/backend/cuda/attention/fake_flash_calls.h"
#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/cuda/attention/bucketed_calls.h"
#include "worker/backend/cuda/attention/buckets.h"
#include "worker/backend/cuda/attention/composed_attention_kernels.h"
#include "worker/backend/cuda/attention/flash_attention.h"

namespace stemma::testing {
namespace {

constexpr int64_t kVocab = 96;

// How one step is run.
struct Setting {
  std::string name;
  v1::Schedule schedule = v1::REUSE;
  v1::TapePolicy prefix = v1::S0, suffix = v1::S0;
  uint32_t block_rows = 0;
  bool has_dense = false;  // a second library takes dense calls, over prompts of 129 and 1,200 tokens
};

class EngineOverFlashTest : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/engine-over-flash";
    std::filesystem::remove_all(directory_);
    const ModelConfig model = SyntheticModel(
        {.hidden = 48, .layers = 3, .heads = 6, .kv_heads = 2, .head_size = 8, .ffn = 40, .vocab = kVocab});
    ASSERT_TRUE(WriteRandomModel(model, {}, directory_).ok());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // The gradients of a step of ragged groups, one of them without a prefix.
  std::vector<at::Tensor> GradientsOn(Backend backend) {
    InProcessOptions options;
    options.run.set_model(directory_);
    options.run.set_dtype("fp64");
    options.run.set_schedule(GetParam().schedule);
    options.run.set_wave_suffixes(3);
    options.run.set_head_chunk_tokens(32);
    options.run.set_memory_budget_bytes(uint64_t{1} << 30);
    options.run.set_threads(1);
    options.edit_step = [](v1::StepPlan& step) {
      for (v1::Cluster& cluster : *step.mutable_clusters()) {
        cluster.set_prefix_policy(GetParam().prefix);
        cluster.set_suffix_policy(GetParam().suffix);
        cluster.set_prefix_block_rows(GetParam().block_rows);
      }
    };
    auto engine = InProcess::Create(options, std::move(backend));
    EXPECT_TRUE(engine.ok()) << engine.status();
    const std::vector<int64_t> prompts =
        GetParam().has_dense ? std::vector<int64_t>{129, 1, 1200} : std::vector<int64_t>{23, 1, 40};
    EXPECT_TRUE((*engine)->Load(SyntheticRequest(prompts, {9, 1, 13, 5}, kVocab)).ok());
    const auto vote = (*engine)->Prepare(0);
    EXPECT_TRUE(vote.ok() && vote->yes()) << vote.status();
    std::vector<at::Tensor> gradients;
    for (const Parameter& p : (*engine)->weights().parameters) gradients.push_back(p.grad.clone());
    return gradients;
  }

  std::string directory_;
};

// `dense`: takes the calls that cuDNN is given on a device; null: there is none.
Backend OverFlash(const worker::cuda::FlashCalls& calls, const worker::cuda::FlashCalls* dense = nullptr) {
  Backend backend = MakeComposedBackend();
  backend.queries_by_token = true;
  worker::cuda::FlashAttentionOptions options{.kernels = worker::cuda::ComposedAttentionKernels(),
                                              .num_multiprocessors = 4};
  options.dense = dense;
  if (dense != nullptr) options.admitted = worker::cuda::ShapesOfHeads({6, 2, 8, at::kDouble});
  backend.attention = std::make_shared<worker::cuda::FlashAttention>(calls, std::move(options));
  return backend;
}

// The largest difference of any gradient, as a part of the largest element of its parameter's.
double WorstError(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double scale = std::max(expected[i].abs().max().item<double>(), 1e-300);
    const double error = (actual[i] - expected[i]).abs().max().item<double>() / scale;
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

// Whether a backward without a mask, and its forward, were asked for over so many keys.
bool AsksForKeys(const FakeFlashCalls& calls, int64_t keys) {
  const auto asks = [&](bool forward) {
    return std::any_of(calls.asked().begin(), calls.asked().end(), [&](const AskedCall& call) {
      return call.forward == forward && !call.causal && call.keys == keys;
    });
  };
  return asks(true) && asks(false);
}

// fp64: sums of some hundred terms in another order.
TEST_P(EngineOverFlashTest, GradientsAreTheCpus) {
  const FakeFlashCalls calls, of_dense;
  const worker::cuda::BucketedCalls dense(of_dense);
  const Backend backend = OverFlash(calls, GetParam().has_dense ? &dense : nullptr);
  EXPECT_LE(WorstError(GradientsOn(backend), GradientsOn(MakeCpuBackend())), 1e-12);
  EXPECT_FALSE(calls.asked().empty());
  // All keys of one prompt, the first of another; what is behind those is the other library's.
  for (const int64_t keys : {128, 1152}) EXPECT_EQ(AsksForKeys(of_dense, keys), GetParam().has_dense) << keys;
  EXPECT_EQ(AsksForKeys(calls, 1199 - 1152), GetParam().has_dense);
}

// Negative control: what naive autograd through the merge computes is exact forward, and wrong here.
TEST_P(EngineOverFlashTest, ABackwardWithoutTheMergedLseIsSeen) {
  const FakeFlashCalls right;
  const WrongFlashCalls wrong(WrongBackward::kOwnOutputAndLse);
  const Backend backend = GetParam().has_dense ? OverFlash(right, &wrong) : OverFlash(wrong);
  // Rows whose own keys are few beside a long prompt's have an LSE that is nearly the prompt's.
  const double least = GetParam().has_dense ? 1e-4 : 1e-3;
  EXPECT_GT(WorstError(GradientsOn(backend), GradientsOn(MakeCpuBackend())), least);
}

INSTANTIATE_TEST_SUITE_P(Settings, EngineOverFlashTest,
                         ::testing::Values(Setting{.name = "reuse"}, Setting{.name = "dense", .schedule = v1::DENSE},
                                           Setting{.name = "recomputed", .prefix = v1::S4, .suffix = v1::S3},
                                           Setting{.name = "blocks", .prefix = v1::S5, .block_rows = 16},
                                           Setting{.name = "two_libraries", .has_dense = true}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace stemma::testing
