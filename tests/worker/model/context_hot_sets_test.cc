// What context-parallel ranks exchange, and when: the hot sets of several ranks give what one rank's gives, layers are
// on their way here while the layers before them run, and a link is hidden behind them. The numbers of whole steps are
// tests/schedule/context_parallel_test.py's.
#include "worker/model/context_hot_sets.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "tests/testing/backends.h"
#include "tests/testing/draw.h"
#include "tests/testing/linked_rank.h"
#include "tests/testing/lone_rank.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/recording_rank.h"
#include "tests/testing/synthetic.h"
#include "tests/testing/tensors.h"
#include "tests/testing/thread_communicator.h"
#include "tests/testing/whole_model.h"
#include "worker/model/prefix.h"
#include "worker/model/wave.h"

namespace stemma::testing {
namespace {

using ::testing::ElementsAre;

// A model whose weights are there once, and whose ranks are handed contexts of it.
class ContextHotSetsTest : public ::testing::Test {
 protected:
  void MakeModel(const SyntheticShape& shape, at::ScalarType dtype) {
    at::manual_seed(1);
    weights_ = MakeWeights(WholeModel(SyntheticModel(shape)), dtype, at::kCPU);
    for (Parameter& p : weights_.parameters) p.weight.normal_(0, 0.05);
    rope_ = MakeRopeTable(weights_.config, 2048, dtype, at::kCPU);
  }

  LayerContext ContextOf(Communicator* cp) const {
    LayerContext context{&TestBackend(), &weights_, &rope_};
    context.cp = cp;
    return context;
  }

  std::vector<int64_t> Tokens(int64_t rows) const {
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < rows; ++i) tokens.push_back(i * 7 % weights_.config.vocab_size);
    return tokens;
  }

  // One suffix behind each prefix.
  WaveInput Wave(const std::vector<int64_t>& lengths, int64_t rows) const {
    WaveInput wave;
    std::vector<at::Tensor> positions;
    for (size_t p = 0; p < lengths.size(); ++p) {
      const auto begin = static_cast<int64_t>(p) * rows;
      wave.segments.push_back({begin, begin + rows, static_cast<int64_t>(p), 0});
      positions.push_back(at::arange(lengths[p], lengths[p] + rows));
    }
    wave.positions_T = at::cat(positions);
    wave.tokens_T = at::arange(wave.positions_T.numel()) % weights_.config.vocab_size;
    return wave;
  }

  Weights weights_;
  RopeTable rope_;
};

// Rows of prefixes that are shorter than the ranks are many, blocks that cut them, and both ways of keeping K/V.
TEST_F(ContextHotSetsTest, EveryRankSeesTheKvThatOneRankMakes) {
  MakeModel({.hidden = 16, .layers = 3, .heads = 2, .kv_heads = 1, .head_size = 8, .ffn = 16, .vocab = 20},
            at::kDouble);
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Draw draw(seed);
    std::vector<int64_t> lengths;
    for (int64_t p = draw.Between(1, 3); p > 0; --p) lengths.push_back(draw.Between(1, 15));
    int64_t rows = 0;
    for (const int64_t length : lengths) rows += length;
    const int64_t ranks = draw.Between(2, 5);
    PrefixOptions options{.forward_only = true, .block_rows = draw.Of<int64_t>({0, 4, 7})};
    const at::NoGradGuard no_grad;
    const PrefixBatch whole = PrefixForward(ContextOf(nullptr), Tokens(rows), lengths, options);
    options.regather = draw.Chance(50);
    auto communicators = MakeThreadRanks(static_cast<int>(ranks), absl::Minutes(1), "cp.0.0");
    std::vector<std::thread> threads;
    for (auto& cp : communicators) {
      threads.emplace_back([&, &rank = cp] {
        const at::NoGradGuard off;
        const LayerContext context = ContextOf(rank.get());
        const PrefixBatch batch = PrefixForward(context, Tokens(rows), lengths, options);
        for (int64_t l = 0; l < 3; ++l) {
          batch.kv->Prefetch(l);
          for (size_t p = 0; p < lengths.size(); ++p) {
            const auto prefix = static_cast<int64_t>(p);
            const AncestorKv seen = batch.kv->Get(l, prefix, PrefixUse::kRead);
            const AncestorKv right = whole.kv->Get(l, prefix, PrefixUse::kRead);
            EXPECT_LT(RelativeError(seen.k_CKE, right.k_CKE), kExact) << "seed " << seed << ", layer " << l;
            EXPECT_LT(RelativeError(seen.v_CKE, right.v_CKE), kExact) << "seed " << seed << ", layer " << l;
          }
        }
        batch.kv->Rest();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// The rows that a rank runs are dealt, so that no two ranks run more than a few rows more than another.
TEST_F(ContextHotSetsTest, RanksRunEqualParts) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Draw draw(seed);
    std::vector<int64_t> lengths;
    for (int64_t p = draw.Between(1, 4); p > 0; --p) lengths.push_back(draw.Between(1, 60));
    const int64_t ranks = draw.Between(1, 5), block_rows = draw.Of<int64_t>({0, 5, 16});
    int64_t all = 0;
    std::vector<int64_t> own;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const PrefixRows rows = MakePrefixRows(lengths, block_rows, rank, ranks);
      own.push_back(rows.own_rows);
      all += rows.own_rows;
      for (const PrefixBlockRows& block : rows.blocks) {
        for (const ContextPiece& piece : block.pieces) {
          EXPECT_TRUE(piece.begin >= block.begin && piece.end <= block.end && piece.rank == rank) << "seed " << seed;
        }
      }
    }
    const PrefixRows rows = MakePrefixRows(lengths, block_rows, 0, ranks);
    EXPECT_EQ(all, rows.rows) << "seed " << seed;
    const auto [least, most] = std::minmax_element(own.begin(), own.end());
    EXPECT_LE(*most - *least, 2 * static_cast<int64_t>(rows.blocks.size() + lengths.size())) << "seed " << seed;
  }
}

std::string LayerRan(int number) { return "layer " + std::to_string(number); }

// A wave gathers a layer while the one before it runs, one at a time, and takes gradients back while the next one runs.
TEST_F(ContextHotSetsTest, ExchangesAreInFlightWhileALayerRuns) {
  MakeModel({.hidden = 16, .layers = 3, .heads = 2, .kv_heads = 1, .head_size = 8, .ffn = 16, .vocab = 20},
            at::kDouble);
  const at::NoGradGuard no_grad;
  std::vector<std::string> events;
  v1::Mesh mesh;
  mesh.set_cp(2);
  const auto cp =
      MakeRecordingRank(MakeLoneRank(mesh, 1).cp, DoneIs::kWhenItIs, [&](const std::string& name, bool begins) {
        events.push_back((name == kPrefixKvName ? "kv " : "sum ") + std::string(begins ? "begins" : "ends"));
      });
  const LayerContext context = ContextOf(cp.get());
  PrefixBatch batch = PrefixForward(context, Tokens(10), {10}, {.regather = true});
  int layers = 0;
  const WavePrefixes prefixes{*batch.kv, [&] { events.push_back(LayerRan(layers++)); }};
  const WaveInput wave = Wave({10}, 4);
  events.clear();
  WaveForwardResult forward = WaveForward(context, prefixes, wave, /*keep_tape=*/true);
  EXPECT_THAT(events, ElementsAre("kv begins", "kv ends", "kv begins", "layer 0", "kv ends", "kv begins", "layer 1",
                                  "kv ends"));
  events.clear();
  layers = 0;
  WaveBackward(context, prefixes, wave, std::move(forward.tape), at::ones_like(forward.hidden_BD));
  EXPECT_THAT(events,
              ElementsAre("kv begins", "kv ends", "kv begins", "sum begins", "layer 0", "kv ends", "kv begins",
                          "sum ends", "sum begins", "layer 1", "kv ends", "sum ends", "sum begins", "sum ends"));
}

// Held K/V exchange nothing in a wave.
TEST_F(ContextHotSetsTest, WavesOverHeldKvExchangeNothing) {
  MakeModel({.hidden = 16, .layers = 3, .heads = 2, .kv_heads = 1, .head_size = 8, .ffn = 16, .vocab = 20},
            at::kDouble);
  const at::NoGradGuard no_grad;
  v1::Mesh mesh;
  mesh.set_cp(2);
  const auto cp = MakeLoneRank(mesh, 1).cp;
  const LayerContext context = ContextOf(cp.get());
  PrefixBatch batch = PrefixForward(context, Tokens(10), {10}, {});
  const WavePrefixes prefixes{*batch.kv, [] {}};
  const WaveInput wave = Wave({10}, 4);
  const int64_t before = cp->stats().BytesOf(kPrefixKvName);
  WaveForwardResult forward = WaveForward(context, prefixes, wave, /*keep_tape=*/true);
  WaveBackward(context, prefixes, wave, std::move(forward.tape), at::ones_like(forward.hidden_BD));
  EXPECT_GT(before, 0) << "Phase A gathered them";
  EXPECT_EQ(cp->stats().BytesOf(kPrefixKvName), before);
  EXPECT_EQ(cp->stats().BytesOf(kPrefixGradientsName), 0);
}

// Over a link that takes a quarter of what a layer does, all that can be hidden is: of L layers' gatherings all but the
// first, in forward and in backward, and of their sums all but the last. A layer that takes longer hides more, so a
// busy machine does not fail it; nor does one run of several that is held up. The control is the mutant
// a_layer_is_gathered_when_it_is_needed.
TEST_F(ContextHotSetsTest, ALinkIsHiddenBehindTheLayers) {
  const int layers = 6;
  MakeModel({.hidden = 256, .layers = layers, .heads = 4, .kv_heads = 2, .head_size = 64, .ffn = 1024, .vocab = 64},
            at::kFloat);
  const at::NoGradGuard no_grad;
  v1::Mesh mesh;
  mesh.set_cp(2);
  const std::vector<int64_t> lengths = {256};
  const WaveInput wave = Wave(lengths, 1280);
  const auto run = [&](Communicator& cp) {
    const LayerContext context = ContextOf(&cp);
    PrefixBatch batch = PrefixForward(context, Tokens(256), lengths, {.regather = true});
    double held_s = 0;
    cp.Observe([&](const CollectiveRecord& record) { held_s += record.ended_s - record.awaited_s; });
    const WavePrefixes prefixes{*batch.kv, [] {}};
    const double begin_s = RealClock().MonotonicSeconds();
    WaveForwardResult forward = WaveForward(context, prefixes, wave, /*keep_tape=*/true);
    WaveBackward(context, prefixes, wave, std::move(forward.tape), at::ones_like(forward.hidden_BD));
    cp.Observe({});
    return std::pair(RealClock().MonotonicSeconds() - begin_s, held_s);
  };
  auto alone = MakeLoneRank(mesh, 1).cp;
  run(*alone);
  const double layer_s = run(*alone).first / (3 * layers);  // a forward is about a third of both
  const Link link{.delay_s = layer_s / 4};
  const auto linked = MakeLinkedRank(MakeLoneRank(mesh, 1).cp, link);
  double held_s = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 5; ++i) held_s = std::min(held_s, run(*linked).second);
  const double all_s = 3 * layers * link.delay_s, hidden_s = 3 * (layers - 1) * link.delay_s;
  EXPECT_LE(held_s, all_s - 0.9 * hidden_s) << "a layer takes " << layer_s << " s, the link " << link.delay_s;
  EXPECT_GT(held_s, 0) << "the first gatherings and the last sum have nothing to hide behind";
}

}  // namespace
}  // namespace stemma::testing
