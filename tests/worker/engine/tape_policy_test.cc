// Tape policies and prefix blocks on whole models: the gradients of every policy are keep-all's bit for bit; blocks of
// any size agree in fp64.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "common/model/model_init.h"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::testing {
namespace {

constexpr double kExact = 1e-12;  // fp64: sums of some hundred terms in another order

constexpr int64_t kVocab = 96;

enum class Kind { kLlama, kQwen3, kMoe };

ModelConfig SmallModel(Kind kind) {
  SyntheticShape shape = {.hidden = 48, .layers = 3, .head_size = 16, .ffn = 80, .vocab = kVocab};
  shape.qk_norm = kind == Kind::kQwen3;
  if (kind == Kind::kMoe) shape.experts = Experts{.count = 6, .per_token = 3, .weights_sum_to_one = false};
  return SyntheticModel(shape);
}

// Three groups of unequal prompts, one of them a single token; ragged responses.
TrainingRequest Request() { return SyntheticRequest({97, 1, 40}, {9, 1, 23}, kVocab); }

struct Memory {
  v1::TapePolicy prefix = v1::S0, suffix = v1::S0;
  uint32_t block_rows = 0;
  bool offload = false;
  uint64_t headroom_bytes = 0;
};

struct ModelCase {
  const char* name;
  const char* dtype;
  Kind kind;
  v1::Schedule schedule;
};

class TapePolicyTest : public ::testing::TestWithParam<ModelCase> {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/tape-" + GetParam().name;
    std::filesystem::remove_all(directory_);
    ASSERT_TRUE(WriteRandomModel(SmallModel(GetParam().kind), {}, directory_).ok());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::vector<at::Tensor> Gradients(const Memory& memory,
                                    std::unique_ptr<AttentionKernel> kernel = std::make_unique<CpuAttention>()) {
    InProcessOptions options;
    options.run.set_model(directory_);
    options.run.set_dtype(GetParam().dtype);
    options.run.set_schedule(GetParam().schedule);
    options.run.set_wave_suffixes(4);
    options.run.set_head_chunk_tokens(32);
    options.run.set_memory_budget_bytes(uint64_t{1} << 30);
    options.run.set_threads(GetParam().dtype == std::string("fp64") ? 1 : 2);
    options.edit_step = [&](v1::StepPlan& step) {
      for (v1::Cluster& cluster : *step.mutable_clusters()) {
        cluster.set_prefix_policy(memory.prefix);
        cluster.set_suffix_policy(memory.suffix);
        cluster.set_prefix_block_rows(memory.block_rows);
        cluster.set_offload_prefix(memory.offload);
        cluster.set_offload_headroom_bytes(memory.headroom_bytes);
      }
    };
    options.run.set_host_memory_bytes(uint64_t{16} << 20);
    auto engine = InProcess::Create(options, MakeCpuBackend(std::move(kernel)));
    EXPECT_TRUE(engine.ok()) << engine.status();
    EXPECT_TRUE((*engine)->Load(Request()).ok());
    const auto vote = (*engine)->Prepare(0);
    EXPECT_TRUE(vote.ok() && vote->yes()) << vote.status();
    std::vector<at::Tensor> gradients;
    for (const Parameter& p : (*engine)->weights().parameters) gradients.push_back(p.grad.clone());
    return gradients;
  }

  // |sum of old - new| over one token of each group, whose `old` comes from an entry pass in blocks of so many rows,
  // while the step itself runs its prefixes at once.
  double EntryPassError(uint32_t block_rows,
                        std::unique_ptr<AttentionKernel> kernel = std::make_unique<CpuAttention>()) {
    TrainingRequest request = SyntheticRequest({97, 1, 40}, {1}, kVocab);
    request.update.mutable_loss()->set_loss_mode("vanilla");
    request.update.mutable_old()->set_from(v1::LogProbSource::WEIGHTS);
    request.update.mutable_old()->set_weights("policy");
    InProcessOptions options;
    options.run.set_model(directory_);
    options.run.set_dtype(GetParam().dtype);
    options.run.set_schedule(GetParam().schedule);
    options.run.set_head_chunk_tokens(32);
    options.run.set_memory_budget_bytes(uint64_t{1} << 30);
    options.run.set_threads(1);
    options.edit_entry_pass = [&](v1::StepPlan& pass) {
      for (v1::Cluster& cluster : *pass.mutable_clusters()) cluster.set_prefix_block_rows(block_rows);
    };
    auto engine = InProcess::Create(options, MakeCpuBackend(std::move(kernel)));
    EXPECT_TRUE(engine.ok()) << engine.status();
    EXPECT_TRUE((*engine)->Load(std::move(request)).ok());
    const auto vote = (*engine)->Prepare(0);
    EXPECT_TRUE(vote.ok() && vote->yes()) << vote.status();
    return std::abs(vote->sums().neg_log_ratio_nats());
  }

  std::string directory_;
};

bool SameBits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!at::equal(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}

// Largest difference of a parameter's gradient, as a part of its largest element.
double WorstError(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  double worst = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double scale = expected[i].abs().max().item<double>();
    worst = std::max(worst, (actual[i] - expected[i]).abs().max().item<double>() / scale);
  }
  return worst;
}

TEST_P(TapePolicyTest, EveryPolicyGivesTheBitsOfKeepAll) {
  const auto expected = Gradients({});
  for (const v1::TapePolicy policy : {v1::S1, v1::S2, v1::S3, v1::S4}) {
    EXPECT_TRUE(SameBits(Gradients({policy, v1::S0, 0}), expected)) << "prefix " << v1::TapePolicy_Name(policy);
    EXPECT_TRUE(SameBits(Gradients({v1::S0, policy, 0}), expected)) << "suffix " << v1::TapePolicy_Name(policy);
    EXPECT_TRUE(SameBits(Gradients({policy, policy, 0}), expected)) << "both " << v1::TapePolicy_Name(policy);
  }
  EXPECT_TRUE(SameBits(Gradients({v1::S5, v1::S1, 0}), expected)) << "prefix S5";
}

TEST_P(TapePolicyTest, BlocksGiveTheBitsOfTheirKeepAllUnderEveryPolicy) {
  for (const uint32_t rows : {17u, 60u}) {
    const auto expected = Gradients({v1::S0, v1::S0, rows});
    for (const v1::TapePolicy policy : {v1::S1, v1::S2, v1::S3, v1::S4, v1::S5}) {
      EXPECT_TRUE(SameBits(Gradients({policy, v1::S0, rows}), expected))
          << v1::TapePolicy_Name(policy) << ", blocks of " << rows;
    }
  }
}

TEST_P(TapePolicyTest, OffloadGivesTheBitsOfKeepAll) {
  for (const uint32_t rows : {0u, 60u}) {
    const auto expected = Gradients({v1::S0, v1::S0, rows});
    for (const v1::TapePolicy policy : {v1::S0, v1::S1, v1::S2, v1::S3, v1::S4}) {
      // No headroom: every copy is waited for; a layer's or two; all.
      for (const uint64_t headroom : {uint64_t{0}, uint64_t{100000}, uint64_t{1} << 30}) {
        EXPECT_TRUE(SameBits(Gradients({policy, v1::S0, rows, true, headroom}), expected))
            << v1::TapePolicy_Name(policy) << ", blocks of " << rows << ", headroom " << headroom;
      }
    }
  }
}

TEST_P(TapePolicyTest, BlocksOfAnySizeAgreeWithTheWholePrefix) {
  if (std::string(GetParam().dtype) != "fp64") GTEST_SKIP() << "rounding of fp32 and bf16 depends on the blocks";
  const auto expected = Gradients({});
  for (const uint32_t rows : {1u, 2u, 16u, 39u, 40u, 95u, 96u, 97u, 134u, 135u, 4096u}) {
    for (const v1::TapePolicy policy : {v1::S0, v1::S5}) {
      EXPECT_LT(WorstError(Gradients({policy, v1::S0, rows}), expected), kExact)
          << v1::TapePolicy_Name(policy) << ", blocks of " << rows;
    }
  }
}

// A forward-only pass in blocks gives the log-probs of the step that follows it, so that every ratio is 1.
TEST_P(TapePolicyTest, AForwardOnlyPassInBlocksAgreesWithTheStepAtOnce) {
  if (std::string(GetParam().dtype) != "fp64") GTEST_SKIP() << "rounding of fp32 and bf16 depends on the blocks";
  for (const uint32_t rows : {0u, 1u, 16u, 39u, 96u, 135u, 4096u}) {
    EXPECT_LT(EntryPassError(rows), kExact) << "blocks of " << rows;
  }
}

// Keys of a block's earlier rows, one row further on.
class WrongKeys : public CpuAttention {
 public:
  explicit WrongKeys(int64_t block_rows) : block_rows_(block_rows) {}
  Output Forward(const Call& call) const override {
    Call wrong = call;
    if (!call.causal && call.q.size(3) == block_rows_) wrong.k = call.k.roll(1, 2);
    return CpuAttention::Forward(wrong);
  }

 private:
  const int64_t block_rows_;
};

TEST_P(TapePolicyTest, ControlAForwardOnlyBlockThatReadsOtherKeysIsSeen) {
  if (std::string(GetParam().dtype) != "fp64") GTEST_SKIP() << "as the claim";
  EXPECT_GT(EntryPassError(30, std::make_unique<WrongKeys>(30)), 1e-6);  // six orders above what rounding does
}

// What a block gives to the keys of the blocks before it, one block further on.
class WrongBlock : public CpuAttention {
 public:
  explicit WrongBlock(int64_t block_rows) : block_rows_(block_rows) {}
  at::Tensor Backward(const Call& call, const Output& output, const at::Tensor& dout,
                      const KeyGradients& sums) const override {
    if (call.causal || call.q.size(3) != block_rows_) return CpuAttention::Backward(call, output, dout, sums);
    const KeyGradients own = {at::zeros_like(sums.dk), sums.dv};
    const at::Tensor dq = CpuAttention::Backward(call, output, dout, own);
    sums.dk.add_(own.dk.roll(block_rows_, 2));
    return dq;
  }

 private:
  const int64_t block_rows_;
};

TEST_P(TapePolicyTest, ControlAGradientOfTheWrongBlockIsSeen) {
  if (GetParam().schedule == v1::DENSE) GTEST_SKIP() << "no prefix";
  const auto expected = Gradients({v1::S0, v1::S0, 30});
  const auto wrong = Gradients({v1::S0, v1::S0, 30}, std::make_unique<WrongBlock>(30));
  EXPECT_GT(WorstError(wrong, expected), 1e-4);  // eight orders above what rounding does
}

INSTANTIATE_TEST_SUITE_P(Models, TapePolicyTest,
                         ::testing::Values(ModelCase{"llama_fp64", "fp64", Kind::kLlama, v1::REUSE},
                                           ModelCase{"qwen3_fp64", "fp64", Kind::kQwen3, v1::REUSE},
                                           ModelCase{"moe_fp64", "fp64", Kind::kMoe, v1::REUSE},
                                           ModelCase{"llama_fp32", "fp32", Kind::kLlama, v1::REUSE},
                                           ModelCase{"qwen3_fp32", "fp32", Kind::kQwen3, v1::REUSE},
                                           ModelCase{"qwen3_bf16", "bf16", Kind::kQwen3, v1::REUSE},
                                           ModelCase{"moe_bf16", "bf16", Kind::kMoe, v1::REUSE},
                                           ModelCase{"dense_fp32", "fp32", Kind::kQwen3, v1::DENSE}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace stemma::testing
