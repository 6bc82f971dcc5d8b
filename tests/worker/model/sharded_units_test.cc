// Gathering of sharded parameters beside layers: when it begins, that what is gathered is there, and that a link is
// hidden behind the layers. The numbers of whole steps are tests/schedule/sharded_test.py's.
#include "worker/model/sharded_units.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "tests/testing/backends.h"
#include "tests/testing/linked_rank.h"
#include "tests/testing/lone_rank.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/recording_rank.h"
#include "tests/testing/synthetic.h"
#include "tests/testing/whole_model.h"
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

  struct Pass {
    int64_t rows = 6;  // of each wave, one dense trajectory
    int waves = 1;
    bool reduces_once = false;
  };

  // Waves of a pass, each forward and backward.
  void Run(
      ShardedUnits& units, const Pass& pass, const std::function<void()>& between_layers = [] {}) {
    OperationVisits visits;
    for (int wave = 0; wave < pass.waves; ++wave) {
      visits.push_back(VisitsOf(weights_.units, Sweep::kWave, /*forward_only=*/false));
      visits.push_back(VisitsOf(weights_.units, Sweep::kBackward, /*forward_only=*/false));
    }
    if (pass.reduces_once) ReduceOnce(visits);
    units.BeginPass(visits);
    for (size_t wave = 0; wave < visits.size() / 2; ++wave) RunWave(units, 2 * wave, pass.rows, between_layers);
    units.EndPass();
  }

  void RunWave(ShardedUnits& units, size_t operation, int64_t rows, const std::function<void()>& between_layers) {
    LayerContext context{&TestBackend(), &weights_, &rope_};
    context.parameters = &units;
    WaveInput wave;
    wave.segments.push_back({0, rows, -1, 0});
    wave.positions_T = at::arange(rows);
    wave.tokens_T = at::arange(rows) % weights_.config.vocab_size;
    units.BeginOperation(operation);
    const WavePrefixes prefixes{*dense_.kv, between_layers};
    WaveForwardResult forward = WaveForward(context, prefixes, wave, /*keep_tape=*/true);
    units.Head(UnitUse::kTrain);
    weights_.at(weights_.head).grad.add_(static_cast<double>(operation + 1));
    units.BeginOperation(operation + 1);
    WaveBackward(context, prefixes, wave, std::move(forward.tape), at::ones_like(forward.hidden_BD));
  }

  // An operation that reads one layer.
  std::vector<UnitVisit> Reads(int layer) const {
    return {{.unit = weights_.units.first_layer + layer, .weights = true}};
  }

  // What this rank has been handed of each unit's gradients since it was asked last.
  std::vector<at::Tensor> TakeOwnGradients() {
    std::vector<at::Tensor> own;
    for (UnitBuffers& unit : weights_.unit_buffers) {
      own.push_back(unit.own_gradients.clone());
      unit.own_gradients.zero_();
    }
    return own;
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
  Run(units, {.rows = 6}, [&] { events += "."; });
  // Forward: the embedding is waited for; each layer, and the head, is on its way while the one before it runs.
  const std::string forward = std::string("()") + "(" + ")(." + ")(." + ")(" + ")";
  // Backward finds two layers where they were, and gathers one; gradients of the head, of three layers and of the
  // embedding leave when the next unit comes, and are waited for when those after them do.
  const std::string backward = std::string("[.") + "][(." + "][)" + "][" + "][" + "]";
  EXPECT_EQ(events, forward + backward);
  EXPECT_GT(units.waited_s(), 0);
}

// What was gathered for an operation that is left out is waited for before its slot is another unit's.
TEST_F(ShardedUnitsTest, AUnitOfAnOperationThatIsLeftOutGivesUpItsSlot) {
  MakeModel({.hidden = 32, .layers = 4, .heads = 2, .kv_heads = 1, .head_size = 16, .ffn = 32, .vocab = 20});
  std::string events;
  const auto rank = MakeRecordingRank(Alone(), DoneIs::kWhenItIs,
                                      [&](const std::string& /*name*/, bool begins) { events += begins ? "(" : ")"; });
  ShardedUnits units(*rank, weights_);
  ASSERT_EQ(weights_.units.slot(weights_.units.first_layer + 1), weights_.units.slot(weights_.units.first_layer + 3));
  units.BeginPass({Reads(0), Reads(1), Reads(3)});
  units.BeginOperation(0);
  units.Layer(0, UnitUse::kRead);
  EXPECT_EQ(events, "()(") << "the next layer is on its way";
  units.BeginOperation(2);
  units.Layer(3, UnitUse::kRead);
  EXPECT_EQ(events, "()()()");
  units.EndPass();
}

// Others may never make the calls that a rank has begun when it cannot go on.
TEST_F(ShardedUnitsTest, APassThatBreaksWaitsForNobody) {
  class AnswersOnce final : public Communicator {
   public:
    AnswersOnce() : Communicator("data.0.0", 0, kRanks) {}

   private:
    worker::StartedCall Start(const worker::CollectiveCall& /*call*/) override {
      const bool answers = calls_++ == 0;
      return {[answers] {
        EXPECT_TRUE(answers) << "a rank that is gone is waited for";
        return absl::OkStatus();
      }};
    }
    int calls_ = 0;
  };
  MakeModel({.hidden = 32, .layers = 2, .heads = 2, .kv_heads = 1, .head_size = 16, .ffn = 32, .vocab = 20});
  AnswersOnce rank;
  ShardedUnits units(rank, weights_);
  units.BeginPass({Reads(0), Reads(1)});
  units.BeginOperation(0);
  units.Layer(0, UnitUse::kRead);
  units.Break();
}

// A pass that reduces once adds up the gradients of its waves, and hands each unit's to their owners in the last wave's
// backward. Afterwards a pass that reduces in each sweep finds the slots as they were.
TEST_F(ShardedUnitsTest, APassThatReducesOnceHandsOutTheSumsOfItsWaves) {
  MakeModel({.hidden = 32, .layers = 3, .heads = 2, .kv_heads = 1, .head_size = 16, .ffn = 32, .vocab = 20});
  std::string events;
  const auto rank = MakeRecordingRank(Alone(), DoneIs::kWhenItIs, [&](const std::string& name, bool begins) {
    if (name == kUnitGradientsName && begins) events += "[";
  });
  const at::NoGradGuard no_grad;
  ShardedUnits units(*rank, weights_);
  const auto own_gradients = [&](bool reduces_once) {
    events.clear();
    Run(units, {.waves = 3, .reduces_once = reduces_once}, [&] { events += "."; });
    return TakeOwnGradients();
  };
  // Between the layers of each wave, forward and backward; gradients of head, layers and embedding leave one visit
  // later.
  const std::string wave = "..[.[.[[[";
  const std::vector<at::Tensor> swept = own_gradients(false);
  EXPECT_EQ(events, wave + wave + wave);
  const std::vector<at::Tensor> once = own_gradients(true);
  EXPECT_EQ(events, "........" + wave);
  for (size_t unit = 0; unit < once.size(); ++unit) {
    EXPECT_TRUE(at::allclose(once[unit], swept[unit], 1e-5, 1e-6)) << "the order of sums differs, unit " << unit;
    EXPECT_GT(once[unit].abs().max().item<double>(), 1e-3) << "unit " << unit;
  }
  const std::vector<at::Tensor> again = own_gradients(false);
  for (size_t unit = 0; unit < once.size(); ++unit) EXPECT_TRUE(again[unit].equal(swept[unit])) << "unit " << unit;
}

// Sums of a pass that was stopped are nobody's, and their memory is given back: the next pass begins in the slots.
TEST_F(ShardedUnitsTest, APassThatIsStoppedLeavesNothingOfItsSums) {
  MakeModel({.hidden = 32, .layers = 2, .heads = 2, .kv_heads = 1, .head_size = 16, .ffn = 32, .vocab = 20});
  const auto rank = Alone();
  const at::NoGradGuard no_grad;
  ShardedUnits units(*rank, weights_);
  const at::Tensor slot = weights_.unit_buffers.front().gradients;
  Run(units, {.waves = 2});
  const std::vector<at::Tensor> undisturbed = TakeOwnGradients();
  const std::vector<UnitVisit> forward = VisitsOf(weights_.units, Sweep::kWave, /*forward_only=*/false),
                               backward = VisitsOf(weights_.units, Sweep::kBackward, /*forward_only=*/false);
  OperationVisits visits = {forward, backward, forward, backward};
  ReduceOnce(visits);
  units.BeginPass(visits);
  EXPECT_FALSE(weights_.unit_buffers.front().gradients.is_same(slot));
  RunWave(units, 0, 6, [] {});
  units.StopPass();
  EXPECT_TRUE(weights_.unit_buffers.front().gradients.is_same(slot));
  for (const at::Tensor& own : TakeOwnGradients()) EXPECT_EQ(own.abs().max().item<double>(), 0);
  Run(units, {.waves = 2});
  const std::vector<at::Tensor> after = TakeOwnGradients();
  for (size_t unit = 0; unit < after.size(); ++unit)
    EXPECT_TRUE(after[unit].equal(undisturbed[unit])) << "unit " << unit;
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
// not fail it; nor do runs that are held up, of up to 20. The control is the mutant
// a_unit_is_gathered_when_it_is_needed.
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
    Run(units, {.rows = 1280});
    data.Observe({});
    return std::tuple(RealClock().MonotonicSeconds() - begin_s, held_s, calls);
  };
  const auto alone = Alone();
  run(*alone);
  const double layer_s = std::get<0>(run(*alone)) / (3 * layers);  // a forward is about a third of both
  const Link link{.delay_s = layer_s / 4};
  const auto linked = MakeLinkedRank(Alone(), link);
  const int64_t calls = (1 + layers + 1) + (layers - 2) + (1 + layers + 1);  // gathered forward, backward, and summed
  const double all_s = static_cast<double>(calls) * link.delay_s, hidden_s = all_s - 4 * link.delay_s;
  double held_s = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 20 && held_s > all_s - 0.9 * hidden_s; ++i) {
    const auto [run_s, held_by_run_s, calls_of_run] = run(*linked);
    held_s = std::min(held_s, held_by_run_s);
    EXPECT_EQ(calls_of_run, calls);
  }
  EXPECT_LE(held_s, all_s - 0.9 * hidden_s) << "a layer takes " << layer_s << " s, the link " << link.delay_s;
  EXPECT_GT(held_s, 0) << "the first gathering and the last sum have nothing to hide behind";
}

}  // namespace
}  // namespace stemma::testing
