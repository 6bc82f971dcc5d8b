// The boundary behind which a prefix's rows may have other owners: waves over K/V that are gathered layer by layer,
// with gradients that are handed back, give what waves over the local hot set give. Models, prefixes, owners and waves
// are drawn.
#include "worker/model/prefix_kv.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/backends.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "tests/testing/tensors.h"
#include "tests/testing/whole_model.h"
#include "worker/model/prefix.h"
#include "worker/model/wave.h"

namespace stemma::testing {
namespace {

// The packed rows are dealt to owners, each with memory of its own; a layer's rows are here from its Prefetch to
// its Reduce, in a forward to the Prefetch after its Get.
class DealtPrefixKv final : public PrefixKv {
 public:
  // ends: of each owner's rows.
  DealtPrefixKv(const LocalHotSet& whole, const std::vector<int64_t>& lengths, std::vector<int64_t> ends)
      : ends_(std::move(ends)) {
    for (const int64_t length : lengths) {
      const int64_t begin = spans_.empty() ? 0 : spans_.back().end;
      spans_.push_back({begin, begin + length, -1});
    }
    for (size_t l = 0; l < whole.k_TKE.size(); ++l) {
      owners_.push_back({Deal(whole.k_TKE[l]), Deal(whole.v_TKE[l]), {}, {}});
      if (whole.gk_TKE.empty()) continue;
      owners_.back().gk = Deal(whole.gk_TKE[l]);
      owners_.back().gv = Deal(whole.gv_TKE[l]);
    }
  }

  void Prefetch(int64_t layer) override {
    calls += "P" + std::to_string(layer) + " ";
    for (const int64_t over : std::exchange(got_, {})) here_.erase(over);
    ASSERT_FALSE(here_.contains(layer)) << "layer " << layer << " is here";
    const Owners& owners = owners_[static_cast<size_t>(layer)];
    AncestorKv rows{at::cat(owners.k, 0), at::cat(owners.v, 0), {}, {}};
    if (!owners.gk.empty()) {
      rows.gk_CKE = at::zeros_like(at::cat(owners.gk, 0));
      rows.gv_CKE = at::zeros_like(rows.gk_CKE);
    }
    here_.emplace(layer, rows);
    most_layers_here = std::max(most_layers_here, here_.size());
  }

  AncestorKv Get(int64_t layer, int64_t prefix, PrefixUse /*use*/) override {
    if (got_.insert(layer).second) calls += "G" + std::to_string(layer) + " ";
    const AttentionSpan& span = spans_[static_cast<size_t>(prefix)];
    return here_.at(layer).Rows(span.begin, span.end);
  }

  void Reduce(int64_t layer) override {
    calls += "R" + std::to_string(layer) + " ";
    const AncestorKv rows = here_.at(layer);
    Owners& owners = owners_[static_cast<size_t>(layer)];
    int64_t begin = 0;
    for (size_t o = 0; o < ends_.size(); ++o) {
      if (o > 0 || !forget_first_owner) {
        owners.gk[o].add_(rows.gk_CKE.slice(0, begin, ends_[o]));
        owners.gv[o].add_(rows.gv_CKE.slice(0, begin, ends_[o]));
      }
      begin = ends_[o];
    }
    here_.erase(layer);
    got_.erase(layer);
  }

  void Rest() override {
    calls += "- ";
    here_.clear();
    got_.clear();
  }

  // Into the hot set, as Phase C reads it.
  void GiveBack(LocalHotSet& whole) const {
    for (size_t l = 0; l < owners_.size(); ++l) {
      whole.gk_TKE[l].copy_(at::cat(owners_[l].gk, 0));
      whole.gv_TKE[l].copy_(at::cat(owners_[l].gv, 0));
    }
  }

  std::string calls;
  size_t most_layers_here = 0;
  bool forget_first_owner = false;

 private:
  struct Owners {
    std::vector<at::Tensor> k, v, gk, gv;
  };

  std::vector<at::Tensor> Deal(const at::Tensor& rows) const {
    std::vector<at::Tensor> dealt;
    int64_t begin = 0;
    for (const int64_t end : ends_) {
      dealt.push_back(rows.slice(0, begin, end).clone());
      begin = end;
    }
    return dealt;
  }

  std::vector<AttentionSpan> spans_;
  const std::vector<int64_t> ends_;
  std::vector<Owners> owners_;          // by layer
  std::map<int64_t, AncestorKv> here_;  // by layer
  std::set<int64_t> got_;               // since the last Prefetch
};

class PrefixKvTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    random_.seed(static_cast<uint32_t>(GetParam()));
    at::manual_seed(static_cast<uint64_t>(GetParam()));
    const int64_t kv_heads = Draw(1, 2);
    const ModelConfig config = SyntheticModel({.hidden = 8 * Draw(2, 4),
                                               .layers = Draw(1, 4),
                                               .heads = kv_heads * Draw(1, 3),
                                               .kv_heads = kv_heads,
                                               .head_size = 8,
                                               .ffn = 16,
                                               .vocab = 20,
                                               .qk_norm = Draw(0, 1) == 1});
    weights_ = MakeWeights(WholeModel(config), at::kDouble, at::kCPU);
    for (Parameter& p : weights_.parameters) p.weight.normal_(0, 0.3);
    rope_ = MakeRopeTable(config, 64, weights_.run_dtype, at::kCPU);
    context_ = {&TestBackend(), &weights_, &rope_};
    for (int64_t p = Draw(1, 3); p > 0; --p) {
      lengths_.push_back(Draw(1, 12));
      for (int64_t i = 0; i < lengths_.back(); ++i) tokens_.push_back(Draw(0, 19));
    }
    for (int64_t w = Draw(1, 3); w > 0; --w) waves_.push_back(DrawWave());
    const auto rows = static_cast<int64_t>(tokens_.size());
    for (int64_t begin = 0; begin < rows; begin = ends_.back()) ends_.push_back(std::min(rows, begin + Draw(1, 9)));
  }

  int64_t Draw(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint32_t>(high - low + 1));
  }

  WaveInput DrawWave() {
    WaveInput wave;
    std::vector<at::Tensor> positions;
    int64_t rows = 0;
    const auto add = [&](int64_t prefix, int64_t first_position) {
      const int64_t count = Draw(1, 6);
      wave.segments.push_back({rows, rows + count, prefix, 0});
      positions.push_back(at::arange(first_position, first_position + count));
      rows += count;
    };
    if (Draw(0, 2) == 0) add(-1, 0);  // a segment without a prefix
    for (size_t p = 0; p < lengths_.size(); ++p) {
      for (int64_t s = Draw(p == 0 ? 1 : 0, 2); s > 0; --s) add(static_cast<int64_t>(p), lengths_[p]);
    }
    wave.tokens_T = at::randint(20, {rows}, at::kLong);
    wave.positions_T = at::cat(positions);
    return wave;
  }

  // All that a step adds to gradients, and each wave's hidden states. dealt: null for the local hot set.
  std::vector<at::Tensor> Step(bool deal, bool forget_first_owner = false, DealtPrefixKv** seen = nullptr) {
    for (Parameter& p : weights_.parameters) p.grad.zero_();
    PrefixBatch prefixes = PrefixForward(context_, tokens_, lengths_, {});
    dealt_ = std::make_unique<DealtPrefixKv>(prefixes.all_rows(), lengths_, ends_);
    dealt_->forget_first_owner = forget_first_owner;
    if (seen != nullptr) *seen = dealt_.get();
    PrefixKv& kv = deal ? static_cast<PrefixKv&>(*dealt_) : *prefixes.kv;
    const WavePrefixes behind{kv, [] {}};
    std::vector<at::Tensor> made;
    for (const WaveInput& wave : waves_) {
      WaveForwardResult forward = WaveForward(context_, behind, wave, /*keep_tape=*/true);
      made.push_back(forward.hidden_BD);
      WaveBackward(context_, behind, wave, std::move(forward.tape), at::ones_like(forward.hidden_BD));
    }
    if (deal) dealt_->GiveBack(prefixes.all_rows());
    PrefixBackward(context_, std::move(prefixes));
    for (const Parameter& p : weights_.parameters) made.push_back(p.grad.clone());
    return made;
  }

  double WorstError(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) worst = std::max(worst, RelativeError(actual[i], expected[i]));
    return worst;
  }

  std::mt19937 random_;
  Weights weights_;
  RopeTable rope_;
  LayerContext context_;
  std::vector<int64_t> tokens_, lengths_, ends_;
  std::vector<WaveInput> waves_;
  std::unique_ptr<DealtPrefixKv> dealt_;
};

TEST_P(PrefixKvTest, RowsOfOtherOwnersGiveTheSameStep) {
  const std::vector<at::Tensor> local = Step(/*deal=*/false);
  EXPECT_LT(WorstError(Step(/*deal=*/true), local), kExact);
}

TEST_P(PrefixKvTest, GradientsThatAnOwnerNeverGetsFail) {
  const std::vector<at::Tensor> local = Step(/*deal=*/false);
  EXPECT_GT(WorstError(Step(/*deal=*/true, /*forget_first_owner=*/true), local), 1e-6);
}

TEST_P(PrefixKvTest, LayersArePrefetchedOneAheadAndReducedOnce) {
  DealtPrefixKv* dealt = nullptr;
  Step(/*deal=*/true, /*forget_first_owner=*/false, &dealt);
  const int64_t layers = weights_.config.num_layers;
  std::string expected;
  for (size_t w = 0; w < waves_.size(); ++w) {
    expected += "P0 ";
    for (int64_t l = 0; l < layers; ++l) {
      if (l + 1 < layers) expected += "P" + std::to_string(l + 1) + " ";
      expected += "G" + std::to_string(l) + " ";
    }
    expected += "- P" + std::to_string(layers - 1) + " ";
    for (int64_t l = layers - 1; l >= 0; --l) {
      if (l > 0) expected += "P" + std::to_string(l - 1) + " ";
      expected += "G" + std::to_string(l) + " R" + std::to_string(l) + " ";
    }
    expected += "- ";
  }
  EXPECT_EQ(dealt->calls, expected);
  EXPECT_LE(dealt->most_layers_here, 2U) << "the layer at work and the next";
}

INSTANTIATE_TEST_SUITE_P(Seeds, PrefixKvTest, ::testing::Range(1, 25));

}  // namespace
}  // namespace stemma::testing
