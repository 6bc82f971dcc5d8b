// Warm-ups held against the ledger that decides when a shape has its plans: none is made in a run that is timed.
#include "tests/gpu/bench/warm_ups.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "worker/backend/cuda/attention/attention_choice.h"
#include "worker/backend/cuda/attention/plan_ledger.h"

namespace stemma::testing {
namespace {

using worker::cuda::DenseShape;
using worker::cuda::kFlopsOfPlans;
using worker::cuda::PlanLedger;

// Calls over one prefix of a backend, as FlashAttention tells its ledger of them.
class Calls {
 public:
  Calls(const ModelConfig& model, const GroupSize& size) : model_(model), size_(size) {
    keys_ = worker::cuda::KeysOfFasterCall(size.prompt - 1, (size.prompt - 1) / 128 * 128);
  }

  // A dense trajectory calls over its prompt in its last layer alone.
  void Run(int64_t rollouts, bool dense, int64_t wave_suffixes) {
    const int64_t wave = dense ? 1 : wave_suffixes;
    for (int64_t left = rollouts; left > 0; left -= wave) {
      const int64_t rows = std::min(left, wave) * size_.response;
      for (int64_t layer = 0; layer < (dense ? 1 : model_.num_layers); ++layer) {
        const DenseShape shape = {{model_.num_heads, model_.num_kv_heads, model_.head_size}, 1, rows, keys_};
        without_ += ledger_.HasPlans(shape) ? 0 : 1;
        ledger_.Begin(shape, 4.0 * static_cast<double>(rows * keys_ * model_.num_heads * model_.head_size));
      }
    }
  }
  // Calls so far that ran without plans, or made them.
  int64_t without() const { return without_; }

 private:
  const ModelConfig model_;
  const GroupSize size_;
  int64_t keys_ = 0, without_ = 0;
  PlanLedger ledger_{kFlopsOfPlans};
};

GroupSize Group(const GroupSize& split, int64_t rollouts) { return {split.prompt, split.response, rollouts}; }

int64_t Usual(const GroupSize& size) {
  return std::clamp<int64_t>((size.prompt + size.response) / size.response, 1, size.rollouts);
}

// Whether the run that is timed has a call without plans.
bool TimesPlans(const ModelConfig& model, const TimedGroup& group, const std::vector<WarmUp>& warm_ups) {
  Calls calls(model, group.size);
  for (const WarmUp& warm_up : warm_ups) {
    for (int64_t i = 0; i < warm_up.runs; ++i) calls.Run(warm_up.rollouts, warm_up.dense, warm_up.wave_suffixes);
  }
  const int64_t before = calls.without();
  calls.Run(group.size.rollouts, group.dense, group.wave_suffixes);
  return calls.without() > before;
}

ModelConfig EightLayers() {
  ModelConfig model = LlamaConfig(false);
  model.num_layers = 8;
  return model;
}

TEST(WarmUpsTest, EveryShapeOfATimedRunHasItsPlans) {
  for (ModelConfig model : {LlamaConfig(false), QwenConfig(false)}) {
    for (const int64_t layers : {1, 8, 14, 32}) {
      model.num_layers = layers;
      for (const GroupSize& split : Splits(false)) {
        for (const int64_t rollouts : {1, 2, 3, 4, 8, 16, 17, 32, 128}) {
          const GroupSize size = Group(split, rollouts);
          std::vector<TimedGroup> groups = {{size, true}};
          for (const int64_t wave : {Usual(size), int64_t{1}, std::min<int64_t>(5, rollouts)}) {
            groups.push_back({size, false, wave});
          }
          for (const TimedGroup& group : groups) {
            EXPECT_FALSE(TimesPlans(model, group, WarmUpsWithPlans(model, group)))
                << size.Text() << (group.dense ? " dense" : " in waves of ") << group.wave_suffixes << ", " << layers;
          }
        }
      }
    }
  }
}

// 8 suffixes in waves of 6: the last has 2.
TEST(WarmUpsTest, ControlTheLastWaveOfTwoPlainWarmUpsHasNone) {
  const TimedGroup group = {Group(Splits(false)[0], 8), false, 6};
  EXPECT_TRUE(TimesPlans(EightLayers(), group, PlainWarmUps(group)));
  std::vector<WarmUp> fewer = WarmUpsWithPlans(EightLayers(), group);
  ASSERT_EQ(fewer.size(), 3u);
  fewer.erase(fewer.begin() + 1);
  EXPECT_TRUE(TimesPlans(EightLayers(), group, fewer));
  const TimedGroup dense = {group.size, true};
  EXPECT_TRUE(TimesPlans(EightLayers(), dense, PlainWarmUps(dense)));
}

TEST(WarmUpsTest, NoGroupIsLargerThanTheTimedOneAndAllShapesEndTogether) {
  const std::vector<WarmUp> expected = {{false, 6, 12, 1}, {false, 4, 12, 1}, {false, 6, 16, 1}};
  EXPECT_EQ(WarmUpsWithPlans(EightLayers(), {Group(Splits(false)[0], 16), false, 6}), expected);
  const std::vector<WarmUp> dense = {{false, 1, 7, 1}, {true, 1, 1, 1}, {true, 1, 1, 1}};
  EXPECT_EQ(WarmUpsWithPlans(EightLayers(), {Group(Splits(false)[0], 16), true}), dense);
  for (const int64_t rollouts : {1, 2, 16}) {
    for (const WarmUp& warm_up : WarmUpsWithPlans(EightLayers(), {Group(Splits(false)[3], rollouts), false, 1})) {
      EXPECT_LE(warm_up.rollouts, rollouts);
      EXPECT_LE(warm_up.runs, 8);
    }
  }
}

TEST(WarmUpsTest, APrefixThatNeverHasPlansIsWarmedOnce) {
  const std::vector<WarmUp> expected = {{false, 2, 2, 1}, {false, 2, 4, 1}};
  EXPECT_EQ(WarmUpsWithPlans(LlamaConfig(true), {{160, 32, 4}, false, 2}), expected);
}

TEST(WarmUpsTest, PlainOnesHaveEveryShapeTwice) {
  const std::vector<WarmUp> expected = {{false, 6, 10, 1}, {false, 6, 16, 1}},
                            dense = {{true, 1, 1, 1}, {true, 1, 1, 1}};
  EXPECT_EQ(PlainWarmUps({{10240, 2048, 16}, false, 6}), expected);
  EXPECT_EQ(PlainWarmUps({{10240, 2048, 16}, true}), dense);
}

}  // namespace
}  // namespace stemma::testing
