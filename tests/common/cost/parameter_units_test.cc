// The units of sharded parameters, and what walking them gathers: drawn models, meshes and sweeps.
#include "common/cost/parameter_units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "common/cost/rank_shape.h"
#include "common/cost/state_shards.h"
#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

class ParameterUnitsTest : public ::testing::TestWithParam<int> {
 protected:
  ParameterUnitsTest() : draw_(FirstSeed() + static_cast<uint64_t>(GetParam())) {
    const int64_t tp = draw_.Between(1, 3), pp = draw_.Between(1, 3);
    config_.hidden_size = 8 * draw_.Between(1, 6);
    config_.num_layers = pp + draw_.Between(0, 4);
    config_.num_kv_heads = tp * draw_.Between(1, 2);
    config_.num_heads = config_.num_kv_heads * draw_.Between(1, 3);
    config_.head_size = 4;
    config_.ffn_size = tp * draw_.Between(1, 30);
    config_.rms_norm_eps = 1e-6;
    config_.vocab_size = draw_.Between(10, 90);
    config_.tie_word_embeddings = draw_.Chance(50);
    if (draw_.Chance(40)) config_.experts = Experts{.count = tp * draw_.Between(1, 4), .per_token = 1};
    const int64_t ep = config_.experts && draw_.Chance(50) ? tp : 1;
    shard_ = *MakeModelShard(config_, {draw_.Between(0, tp - 1), tp, draw_.Between(0, pp - 1), pp, ep});
    units_ = ParameterUnitsOf(shard_, draw_.Between(1, 5));
  }

  // A pass: sweeps in any order.
  std::vector<std::vector<UnitVisit>> DrawSweeps() {
    const bool forward_only = draw_.Chance(30);
    std::vector<std::vector<UnitVisit>> sweeps;
    for (int64_t i = draw_.Between(1, 12); i > 0; --i) {
      const auto sweep = draw_.Of<Sweep>({Sweep::kPrefix, Sweep::kWave, Sweep::kBackward});
      sweeps.push_back(draw_.Chance(10) ? std::vector<UnitVisit>{} : VisitsOf(units_, sweep, forward_only));
    }
    if (draw_.Chance(50)) ReduceOnce(sweeps);
    return sweeps;
  }

  Draw draw_;
  ModelConfig config_;
  ModelShard shard_;
  ParameterUnits units_;
};

TEST_P(ParameterUnitsTest, AreAllParametersInEqualParts) {
  const int64_t parameters = NumParameters(shard_), gathered = units_.ranks * units_.part();
  EXPECT_GE(gathered, parameters);
  // A parameter is padded by less than 16 elements, and a part of a unit by as many.
  const auto num_parameters = static_cast<int64_t>(LocalTensors(shard_).size());
  EXPECT_LT(gathered - parameters, 16 * (num_parameters + units_.ranks * static_cast<int64_t>(units_.parts.size())));
  EXPECT_EQ(units_.num_layers, shard_.layer_end - shard_.layer_begin);
  EXPECT_EQ(units_.embedding >= 0, shard_.is_first());
  EXPECT_EQ(units_.head >= 0, shard_.is_last());
  if (shard_.is_first() && shard_.is_last()) {
    EXPECT_EQ(units_.embedding == units_.head, config_.tie_word_embeddings);
  }
  for (const int64_t part : units_.parts) EXPECT_EQ(part % 16, 0);
}

// What a layer reads is in its slot, whatever was prefetched before, and nothing is gathered over what is being read.
TEST_P(ParameterUnitsTest, AVisitFindsItsUnitInItsSlot) {
  const std::vector<std::vector<UnitVisit>> sweeps = DrawSweeps();
  std::vector<UnitVisit> all;
  for (const auto& sweep : sweeps) all.insert(all.end(), sweep.begin(), sweep.end());
  UnitWalk walk(units_);
  std::vector<int> slots(ParameterUnits::kSlots, -1);
  UnitTraffic counted;
  for (size_t i = 0; i < all.size(); ++i) {
    const UnitWalk::Gathers gathers = walk.Visit(all[i], i + 1 < all.size() ? &all[i + 1] : nullptr);
    int64_t gathered = 0;
    const auto gather = [&](int unit) {
      slots[static_cast<size_t>(units_.slot(unit))] = unit;
      gathered += (units_.ranks - 1) * units_.parts[static_cast<size_t>(unit)];
    };
    if (gathers.own) gather(all[i].unit);
    if (gathers.next >= 0) {
      EXPECT_TRUE(!all[i].weights || units_.slot(gathers.next) != units_.slot(all[i].unit)) << "over what is read";
      EXPECT_EQ(gathers.next, all[i + 1].unit);
      gather(gathers.next);
    }
    if (all[i].weights) {
      EXPECT_EQ(slots[static_cast<size_t>(units_.slot(all[i].unit))], all[i].unit) << "visit " << i;
    }
    counted.weight_elements += gathered;
    if (all[i].reduces)
      counted.gradient_elements += (units_.ranks - 1) * units_.parts[static_cast<size_t>(all[i].unit)];
  }
  UnitTraffic told;
  for (const UnitTraffic& traffic : TrafficOf(units_, sweeps)) told += traffic;
  EXPECT_EQ(told.weight_elements, counted.weight_elements);
  EXPECT_EQ(told.gradient_elements, counted.gradient_elements);
  if (units_.ranks == 1) {
    EXPECT_EQ(told.weight_collectives + told.gradient_collectives, 0);
  }
}

// A layer is gathered beside the one before it, but for the first one of a pass.
TEST_P(ParameterUnitsTest, LayersAreGatheredAhead) {
  const std::vector<UnitVisit> sweep = VisitsOf(units_, Sweep::kPrefix, /*forward_only=*/false);
  UnitWalk walk(units_);
  for (size_t i = 0; i < sweep.size(); ++i) {
    const UnitWalk::Gathers gathers = walk.Visit(sweep[i], i + 1 < sweep.size() ? &sweep[i + 1] : nullptr);
    EXPECT_EQ(gathers.own, i == 0) << i;
    EXPECT_EQ(gathers.next >= 0, i + 1 < sweep.size()) << i;
  }
}

// What is made is reduced, each unit's after the last visit that adds to it and never before.
TEST_P(ParameterUnitsTest, GradientsOfAPassAreReducedInTheirLastVisit) {
  std::vector<std::vector<UnitVisit>> sweeps = DrawSweeps();
  ReduceOnce(sweeps);
  std::map<int, int> made, reduced;
  for (const auto& sweep : sweeps) {
    for (const UnitVisit& visit : sweep) {
      if (!visit.gradients) {
        EXPECT_FALSE(visit.reduces);
        continue;
      }
      EXPECT_EQ(reduced[visit.unit], 0) << "unit " << visit.unit << " is added to after it was reduced";
      ++made[visit.unit];
      reduced[visit.unit] += visit.reduces;
    }
  }
  for (const auto& [unit, visits] : made)
    EXPECT_EQ(reduced[unit], 1) << "unit " << unit << " of " << visits << " visits";
}

INSTANTIATE_TEST_SUITE_P(Seeds, ParameterUnitsTest, ::testing::Range(0, 60));

}  // namespace
}  // namespace stemma::testing
