// Gathering of sharded parameters beside layers: when it begins, that what is gathered is there, and that a link is
// hidden behind the layers. The numbers of whole steps are tests/schedule/sharded_test.py's.
#include "worker/model/sharded_units.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "tests/testing/backends.h"
#include "tests/testing/linked_rank.h"
#include "tests/testing/lone_rank.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/recording_rank.h"
#include "tests/testing/synthetic.h"
#include "worker/model/prefix.h"
#include "worker/model/wave.h"

namespace stemma::testing {
namespace {

constexpr int kRanks = 2;

class ShardedUnitsTest : public ::testing::Test {
 protected:
  void MakeModel(const SyntheticShape& shape) {
    at::manual_seed(1);
    weights_ = MakeWeights(WholeModel(SyntheticModel(shape)), at::kFloat, at::kCPU, Gradients::kMade,
                           {0, kRanks, /*shard_parameters=*/true});
    for (UnitBuffers& unit : weights_.unit_buffers) unit.own_weights.normal_(0, 0.05);
    rope_ = MakeRopeTable(weights_.config, 2048, at::kFloat, at::kCPU);
    dense_.kv = std::make_unique<LocalHotSet>(PrefixRows{});
  }

  static std::unique_ptr<Communicator> Alone() {
    v1::Mesh mesh;
    mesh.set_cp(kRanks);  // whose ranks hold the same part of the model, too
    return MakeLoneRank(mesh, 1).data;
  }

  // A dense trajectory of so many rows, forward and backward.
  void RunWave(
      ShardedUnits& units, int64_t rows, const std::function<void()>& between_layers = [] {}) {
    LayerContext context{&TestBackend(), &weights_, &rope_};
    context.parameters = &units;
    WaveInput wave;
    wave.segments.push_back({0, rows, -1, 0});
    wave.positions_T = at::arange(rows);
    wave.tokens_T = at::arange(rows) % weights_.config.vocab_size;
    units.BeginPass({VisitsOf(weights_.units, Sweep::kWave, /*forward_only=*/false),
                     VisitsOf(weights_.units, Sweep::kBackward, /*forward_only=*/false)});
    units.BeginOperation(0);
    const WavePrefixes prefixes{*dense_.kv, between_layers};
    WaveForwardResult forward = WaveForward(context, prefixes, wave, /*keep_tape=*/true);
    units.Head(UnitUse::kTrain);
    units.BeginOperation(1);
    WaveBackward(context, prefixes, wave, std::move(forward.tape), at::ones_like(forward.hidden_BD));
    units.EndPass();
  }

  Weights weights_;
  RopeTable rope_;
  PrefixBatch dense_;
};

// A layer is on its way while the one before it runs, and its gradients travel beside the next one's backward.
TEST_F(ShardedUnitsTest, UnitsTravelBesideTheLayers) {
  MakeModel({.hidden = 32, .layers = 3, .heads = 2, .kv_heads = 1, .head_size = 16, .ffn = 32, .vocab = 20});
  std::string events;
  const auto rank = MakeRecordingRank(Alone(), DoneIs::kWhenItIs, [&](const std::string& name, bool begins) {
    events += name == kUnitName ? (begins ? "(" : ")") : (begins ? "[" : "]");
  });
  const at::NoGradGuard no_grad;
  ShardedUnits units(*rank, weights_);
  RunWave(units, 6, [&] { events += "."; });
  // Forward: the embedding is waited for; each layer, and the head, is on its way while the one before it runs.
  const std::string forward = std::string("()") + "(" + ")(." + ")(." + ")(" + ")";
  // Backward finds two layers where they were, and gathers one; gradients of the head, of three layers and of the
  // embedding leave when the next unit comes, and are waited for when those after them do.
  const std::string backward = std::string("[.") + "][(." + "][)" + "][" + "][" + "]";
  EXPECT_EQ(events, forward + backward);
}

// What a pass has not said beforehand would be gathered by this rank alone.
TEST_F(ShardedUnitsTest, AVisitThatNobodyAnnouncedDies) {
  MakeModel({.hidden = 32, .layers = 2, .heads = 2, .kv_heads = 1, .head_size = 16, .ffn = 32, .vocab = 20});
  const auto rank = Alone();
  ShardedUnits units(*rank, weights_);
  units.BeginPass({VisitsOf(weights_.units, Sweep::kPrefix, /*forward_only=*/true)});
  units.BeginOperation(0);
  units.Embedding(UnitUse::kRead);
  EXPECT_DEATH(units.Layer(1, UnitUse::kRead), "is no visit of operation 0 now");
  EXPECT_DEATH(units.Layer(0, UnitUse::kTrain), "is no visit of operation 0 now");
  EXPECT_DEATH(units.EndPass(), "has left out visits");
  units.Layer(0, UnitUse::kRead);
  units.Layer(1, UnitUse::kRead);
  units.EndPass();
}

// Over a link that takes a quarter of what a layer does, all that can be hidden is. The embedding and the head compute
// next to nothing here, so what is behind them is not: the first unit and the first layer of the pass, and at its end
// the gradients of the first layer and of the embedding. A layer that takes longer hides more, so a busy machine does
// not fail it. The control is the mutant a_unit_is_gathered_when_it_is_needed.
TEST_F(ShardedUnitsTest, ALinkIsHiddenBehindTheLayers) {
  const int layers = 6;
  MakeModel({.hidden = 256, .layers = layers, .heads = 4, .kv_heads = 2, .head_size = 64, .ffn = 1024, .vocab = 64});
  const at::NoGradGuard no_grad;
  const auto run = [&](Communicator& data) {
    ShardedUnits units(data, weights_);
    double held_s = 0;
    int64_t calls = 0;
    data.Observe([&](const CollectiveRecord& record) {
      held_s += record.ended_s - record.awaited_s;
      ++calls;
    });
    const double begin_s = RealClock().MonotonicSeconds();
    RunWave(units, 1280);
    data.Observe({});
    return std::tuple(RealClock().MonotonicSeconds() - begin_s, held_s, calls);
  };
  const auto alone = Alone();
  run(*alone);
  const double layer_s = std::get<0>(run(*alone)) / (3 * layers);  // a forward is about a third of both
  const Link link{.delay_s = layer_s / 4};
  const auto linked = MakeLinkedRank(Alone(), link);
  const auto [seconds, held_s, calls] = run(*linked);
  const double all_s = static_cast<double>(calls) * link.delay_s, hidden_s = all_s - 4 * link.delay_s;
  EXPECT_EQ(calls, (1 + layers + 1) + (layers - 2) + (1 + layers + 1)) << "gathered forward, backward, and summed";
  EXPECT_LE(held_s, all_s - 0.9 * hidden_s) << "a layer takes " << layer_s << " s, the link " << link.delay_s;
  EXPECT_GT(held_s, 0) << "the first gathering and the last sum have nothing to hide behind";
}

}  // namespace
}  // namespace stemma::testing
