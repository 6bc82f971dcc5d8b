// Plans are made for shapes that come often enough, and no order of calls costs more than twice what it must.
#include "worker/backend/cuda/attention/plan_ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/testing/draw.h"

namespace stemma::testing {
namespace {

using worker::cuda::DenseShape;
using worker::cuda::PlanLedger;
using worker::cuda::ShapeFamily;

constexpr ShapeFamily kFamily = {.heads = 8, .kv_heads = 2, .head_size = 128};

TEST(PlanLedgerTest, AShapeHasPlansOnceItsCallsHaveSpentThem) {
  PlanLedger ledger(/*flops_of_plans=*/100);
  const DenseShape shape = {kFamily, 1, 300, 1024};
  for (const double flops : {60.0, 39.0, 1.0}) {
    ledger.Begin(shape, flops);
    EXPECT_FALSE(ledger.HasPlans(shape)) << "the call that spends the last of them runs without";
  }
  ledger.Begin(shape, 60);
  EXPECT_TRUE(ledger.HasPlans(shape));
}

TEST(PlanLedgerTest, PlansThatCostNothingAreThereAtOnce) {
  PlanLedger ledger(0);
  const DenseShape shape = {kFamily, 1, 1, 128};
  EXPECT_FALSE(ledger.HasPlans(shape)) << "no forward has begun";
  ledger.Begin(shape, 1);
  EXPECT_TRUE(ledger.HasPlans(shape));
}

TEST(PlanLedgerTest, RowsOfABucketAreOneShapeAndAllElseIsAnother) {
  const DenseShape shape = {kFamily, 1, 300, 1024};
  PlanLedger ledger(0);
  ledger.Begin(shape, 1);
  EXPECT_TRUE(ledger.HasPlans({kFamily, 1, 384, 1024})) << "both run with 384 rows";
  EXPECT_FALSE(ledger.HasPlans({kFamily, 1, 385, 1024}));
  EXPECT_FALSE(ledger.HasPlans({kFamily, 1, 300, 1152}));
  EXPECT_FALSE(ledger.HasPlans({kFamily, 2, 300, 1024}));
  ShapeFamily other = kFamily;
  other.causal = true;
  EXPECT_FALSE(ledger.HasPlans({other, 1, 300, 1024}));
  ledger.Begin({other, 1, 300, 300}, 1);
  EXPECT_TRUE(ledger.HasPlans({other, 1, 384, 384})) << "keys of a causal call are padded with its rows";
  EXPECT_FALSE(ledger.HasPlans({other, 1, 385, 385}));
  for (int64_t ShapeFamily::*size : {&ShapeFamily::heads, &ShapeFamily::kv_heads, &ShapeFamily::head_size}) {
    other = kFamily;
    other.*size += 1;
    EXPECT_FALSE(ledger.HasPlans({other, 1, 300, 1024}));
  }
}

// Counted in FLOPs that a call without plans loses: the plans of a shape cost as much as `flops_of_plans`.
TEST(PlanLedgerTest, CostsAtMostTwiceWhatTheBestChoiceWould) {
  constexpr double kPlans = 1000;
  for (uint32_t seed = FirstSeed(); seed < FirstSeed() + 200; ++seed) {
    Draw draw(seed);
    PlanLedger ledger(kPlans);
    std::map<int64_t, double> all, paid;  // by keys
    const int64_t most = draw.Between(1, 200);
    for (int64_t calls = draw.Between(1, 400); calls > 0; --calls) {
      const int64_t keys = 128 * draw.Between(1, 5);
      const auto flops = static_cast<double>(draw.Between(1, most));
      const DenseShape shape = {kFamily, 1, 128, keys};
      const bool had = ledger.HasPlans(shape);
      ledger.Begin(shape, flops);
      all[keys] += flops;
      paid[keys] += !ledger.HasPlans(shape) ? flops : had ? 0 : kPlans;
    }
    for (const auto& [keys, flops] : all) {
      const double best = std::min(flops, kPlans);
      EXPECT_LE(paid[keys], 2 * best + static_cast<double>(most)) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace stemma::testing
