// The blocks of a layer against the table of tape policies (common/cost/tape_policy.h): each tensor of a tape is there
// exactly when the table says so, and a layer gives the same bits from whatever its tape kept. Models and rows are
// drawn.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/testing/backends.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "tests/testing/whole_model.h"
#include "worker/model/kv_block.h"
#include "worker/model/layer.h"

namespace stemma::testing {
namespace {

// Gradients that other segments have accumulated: ones on K, twos on V.
class ReadByOthers final : public SegmentKv {
 public:
  explicit ReadByOthers(at::Tensor gk_TKE) : gk_TKE_(std::move(gk_TKE)) {}
  KvGradients Gradients() const override { return {gk_TKE_, 2 * gk_TKE_}; }

 private:
  const at::Tensor gk_TKE_;
};

// Sees who else holds a tensor when the layer asks for what others accumulated.
class SeesHolders final : public SegmentKv {
 public:
  explicit SeesHolders(const at::Tensor& tensor) : tensor_(tensor) {}
  KvGradients Gradients() const override {
    holders = tensor_.use_count();
    return {};
  }

  mutable size_t holders = 0;

 private:
  const at::Tensor& tensor_;
};

constexpr v1::TapePolicy kPolicies[] = {v1::S0, v1::S1, v1::S2, v1::S3, v1::S4};

// A model of one layer with random weights and zero gradients, and rows to run: two spans, the first behind an
// ancestor.
class BlocksTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    std::mt19937 random(static_cast<uint32_t>(GetParam()));
    const auto draw = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random() % static_cast<uint32_t>(high - low + 1));
    };
    const int64_t kv_heads = draw(1, 2), head_size = 8 * draw(1, 3);
    ModelConfig config = SyntheticModel({.hidden = 8 * draw(2, 6),
                                         .layers = 1,
                                         .heads = kv_heads * draw(1, 3),
                                         .kv_heads = kv_heads,
                                         .head_size = head_size,
                                         .ffn = 8 * draw(2, 9),
                                         .vocab = 20,
                                         .qk_norm = GetParam() % 3 == 0});
    config.qkv_bias = GetParam() % 3 == 1;
    if (GetParam() % 2 == 0) config.experts = Experts{draw(2, 6), draw(1, 2), draw(0, 1) == 1};
    const at::ScalarType dtypes[] = {at::kDouble, at::kFloat, at::kBFloat16};
    at::manual_seed(static_cast<uint64_t>(GetParam()));
    weights_ = MakeWeights(WholeModel(config), dtypes[draw(0, 2)], at::kCPU);
    for (Parameter& p : weights_.parameters) p.weight.normal_(0, 0.3);
    rope_ = MakeRopeTable(config, 64, weights_.run_dtype, at::kCPU);
    context_ = {&testing::TestBackend(), &weights_, &rope_};
    MakeRows(draw(1, 20), draw(1, 9), draw(1, 30));
  }

  void MakeRows(int64_t first, int64_t second, int64_t ancestor) {
    const ModelConfig& c = weights_.config;
    const auto random = [&](std::vector<int64_t> sizes) {
      return at::randn(sizes, at::TensorOptions().dtype(at::kFloat)).to(weights_.run_dtype);
    };
    x_TD_ = random({first + second, c.hidden_size});
    dy_TD_ = random({first + second, c.hidden_size});
    positions_T_ = at::cat({at::arange(first) + ancestor, at::arange(second)});
    k_CKE_ = random({ancestor, c.num_kv_heads, c.head_size});
    batch_.scale = 0.25;
    batch_.spans = {{0, first, 0}, {first, first + second, -1}};
    batch_.ancestors = {{k_CKE_, random({ancestor, c.num_kv_heads, c.head_size}), {}, {}}};
  }

  // What a layer gave: its output, its input's gradient, and every gradient that it adds to.
  std::vector<at::Tensor> Run(v1::TapePolicy policy) {
    const auto accumulate = at::TensorOptions().dtype(weights_.accumulate_dtype);
    for (Parameter& p : weights_.parameters) p.grad.zero_();
    batch_.ancestors[0].gk_CKE = at::zeros(k_CKE_.sizes(), accumulate);
    batch_.ancestors[0].gv_CKE = at::zeros(k_CKE_.sizes(), accumulate);
    LayerResult result = LayerForward(context_, 0, {batch_, positions_T_}, x_TD_, policy);
    const at::Tensor gk_TKE = at::ones_like(result.tape.attention.saved.k_TKE, accumulate);
    const at::Tensor dx_TD = LayerBackward(context_, 0, {batch_, positions_T_, ReadByOthers(gk_TKE)}, dy_TD_.clone(),
                                           std::move(result.tape));
    std::vector<at::Tensor> made = {result.y_TD, dx_TD, batch_.ancestors[0].gk_CKE, batch_.ancestors[0].gv_CKE};
    for (const Parameter& p : weights_.parameters) made.push_back(p.grad.clone());
    return made;
  }

  Weights weights_;
  RopeTable rope_;
  LayerContext context_;
  AttentionBatch batch_;
  at::Tensor x_TD_, dy_TD_, positions_T_, k_CKE_;
};

// Returns how many tensors of that name a layer of the model has; of each other there is one.
int CountOf(TapeTensor name, const ModelConfig& config) {
  if (name == TapeTensor::kBeforeQkNorm) return config.qk_norm ? 2 : 0;
  if (name == TapeTensor::kRouting) return !config.experts ? 0 : config.experts->weights_sum_to_one ? 2 : 3;
  return -1;
}

// `entries` are those of one tape under `policy`.
void ExpectKept(const std::vector<TapeEntry>& entries, v1::TapePolicy policy, const ModelConfig& config) {
  std::map<TapeTensor, int> defined, all;
  for (const TapeEntry& entry : entries) {
    ++all[entry.name];
    if (entry.tensor->defined()) ++defined[entry.name];
  }
  for (const auto& [name, tensors] : all) {
    const int exist = CountOf(name, config) < 0 ? tensors : std::min(CountOf(name, config), tensors);
    EXPECT_EQ(defined[name], Keeps(policy, name) ? exist : 0)
        << "tensor " << static_cast<int>(name) << " under " << v1::TapePolicy_Name(policy);
  }
}

TEST_P(BlocksTest, ATapeHoldsWhatTheTableSays) {
  const ModelConfig& config = weights_.config;
  for (const v1::TapePolicy policy : kPolicies) {
    LayerResult result = LayerForward(context_, 0, {batch_, positions_T_}, x_TD_, policy);
    EXPECT_TRUE(result.tape.attention.saved.k_TKE.defined() && result.tape.attention.saved.v_TKE.defined());
    ExpectKept(result.tape.Entries(), policy, config);
    KvTape kv = KvBlock(context_, 0, positions_T_).Forward(x_TD_, policy);
    EXPECT_TRUE(kv.k_TKE.defined() && kv.v_TKE.defined());
    ExpectKept(kv.Entries(), policy, config);
  }
}

TEST(TapeEntriesTest, EveryTensorOfTheTableIsInATape) {
  LayerTape layer;
  KvTape kv;
  std::set<TapeTensor> names;
  for (const TapeEntry& entry : layer.Entries()) names.insert(entry.name);
  for (const TapeEntry& entry : kv.Entries()) names.insert(entry.name);
  EXPECT_EQ(names.size(), static_cast<size_t>(TapeTensor::kActivation) + 1);
}

// What docs/memory.md says of each policy.
TEST(TapeEntriesTest, EachPolicyDropsWhatItsRowOfTheDocumentNames) {
  using enum TapeTensor;
  const std::vector<std::pair<v1::TapePolicy, std::vector<TapeTensor>>> dropped = {
      {v1::S0, {}},
      {v1::S1, {kNormed, kActivation}},
      {v1::S2, {kGateUp}},
      {v1::S3, {kQueries, kBeforeQkNorm}},
      {v1::S4, {kAttended, kResidual, kStatistic}},
      {v1::S5, {kInput, kRouting, kKvStatistic}}};
  std::set<TapeTensor> gone;
  for (const auto& [policy, more] : dropped) {
    gone.insert(more.begin(), more.end());
    for (int tensor = 0; tensor <= static_cast<int>(kActivation); ++tensor) {
      EXPECT_EQ(Keeps(policy, static_cast<TapeTensor>(tensor)), !gone.contains(static_cast<TapeTensor>(tensor)))
          << tensor << " under " << v1::TapePolicy_Name(policy);
    }
  }
}

TEST_P(BlocksTest, EveryPolicyGivesTheSameBits) {
  const std::vector<at::Tensor> kept = Run(v1::S0);
  for (const v1::TapePolicy policy : kPolicies) {
    const std::vector<at::Tensor> made = Run(policy);
    ASSERT_EQ(made.size(), kept.size());
    for (size_t i = 0; i < made.size(); ++i) {
      EXPECT_TRUE(at::equal(made[i], kept[i])) << "result " << i << " under " << v1::TapePolicy_Name(policy);
    }
  }
  EXPECT_GT(kept[1].abs().sum().item<double>(), 0) << "nothing flowed back";
}

// Where K/V of other ranks' rows were gathered for the layer, they can be freed before its gradients travel.
TEST_P(BlocksTest, NothingOfTheAncestorsIsHeldWhenAttentionHasEnded) {
  for (const v1::TapePolicy policy : kPolicies) {
    LayerResult result = LayerForward(context_, 0, {batch_, positions_T_}, x_TD_, policy);
    AttentionBatch batch = batch_;
    const at::Tensor k_CKE = batch.ancestors[0].k_CKE = k_CKE_.clone();
    batch.ancestors[0].gk_CKE = at::zeros(k_CKE_.sizes(), at::TensorOptions().dtype(weights_.accumulate_dtype));
    batch.ancestors[0].gv_CKE = batch.ancestors[0].gk_CKE.clone();
    const SeesHolders kv(k_CKE);
    LayerBackward(context_, 0, {std::move(batch), positions_T_, kv}, dy_TD_.clone(), std::move(result.tape));
    EXPECT_EQ(kv.holders, 1U) << "this test alone; under " << v1::TapePolicy_Name(policy);
  }
}

TEST_P(BlocksTest, TensorsThatAreTakenOutComeBackToTheirPlaces) {
  LayerResult result = LayerForward(context_, 0, {batch_, positions_T_}, x_TD_, v1::S2);
  std::vector<at::Tensor> before;
  for (const TapeEntry& entry : result.tape.Entries()) before.push_back(*entry.tensor);
  std::vector<at::Tensor> taken = TakeTensors(result.tape);
  for (const TapeEntry& entry : result.tape.Entries()) EXPECT_FALSE(entry.tensor->defined());
  EXPECT_TRUE(result.tape.attention.saved.k_TKE.defined()) << "K and V stay";
  PutTensors(result.tape, std::move(taken));
  const std::vector<TapeEntry> entries = result.tape.Entries();
  for (size_t i = 0; i < entries.size(); ++i) EXPECT_TRUE(entries[i].tensor->is_same(before[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Seeds, BlocksTest, ::testing::Range(1, 13));

}  // namespace
}  // namespace stemma::testing
