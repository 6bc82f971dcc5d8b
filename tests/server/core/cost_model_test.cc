// Work in parts is the FLOPs of common/cost.h, split; seconds are linear in it; S(N) follows.
#include "server/core/cost_model.h"

#include "gtest/gtest.h"
#include "server/core/group_cost.h"
#include "tests/server/core/cluster_shapes.h"

namespace stemma {
namespace {

using testing::BenchMemory;
using testing::BenchModel;
using testing::OneGroup;

ByteShape Shape() {
  ByteShape shape;
  shape.config = BenchModel();
  return shape;
}

double FlopUnits(const Work& work) {
  return work[kLinear] + work[kAttentionForward] + work[kAttentionBackward] + work[kHead];
}

double FlopUnits(const PhaseWork& work) {
  return FlopUnits(work.prefix_forward) + FlopUnits(work.suffix) + FlopUnits(work.prefix_backward);
}

TEST(CostModelTest, TheUnitsAreTheExactFlops) {
  const ByteShape shape = Shape();
  for (const int64_t prefix : {0, 1, 300, 1023}) {
    const PrefixShape whole = {.rows = prefix, .longest_rows = prefix};
    const PhaseWork reuse = ClusterWork(shape, OneGroup(prefix, 77, 3), whole, v1::S0, 1);
    const Flops expected_prefix = prefix > 0 ? PrefixFlops(shape.config, prefix) : Flops();
    const double suffix = SuffixFlops(shape.config, prefix, 77).total();
    EXPECT_NEAR(FlopUnits(reuse.prefix_forward), expected_prefix.forward, 1e-9 * expected_prefix.forward);
    EXPECT_NEAR(FlopUnits(reuse.prefix_backward), expected_prefix.backward, 1e-9 * expected_prefix.backward);
    EXPECT_NEAR(FlopUnits(reuse.suffix), 3 * suffix, 1e-9 * suffix);
    const PhaseWork dense = ClusterWork(shape, OneGroup(prefix, 77, 3, /*reuse=*/false), {}, v1::S0, 1);
    const double expected_dense = 3 * DenseFlops(shape.config, prefix, 77).total();
    EXPECT_NEAR(FlopUnits(dense), expected_dense, 1e-9 * expected_dense);
    const PhaseWork forward = ForwardClusterWork(shape, OneGroup(prefix, 77, 3), 1);
    EXPECT_NEAR(3 * FlopUnits(forward), FlopUnits(reuse), 1e-9 * FlopUnits(reuse));
  }
}

TEST(CostModelTest, APolicyAddsTheFlopsThatItMakesAgain) {
  const ByteShape shape = Shape();
  const ClusterShape cluster = OneGroup(1023, 256, 4);
  const PrefixShape all = {.rows = 1023, .longest_rows = 1023};
  const double base = FlopUnits(ClusterWork(shape, cluster, all, v1::S0, 1));
  for (const v1::TapePolicy policy : {v1::S1, v1::S2, v1::S3, v1::S4}) {
    PrefixShape prefix = all;
    prefix.policy = policy;
    const double added = FlopUnits(ClusterWork(shape, cluster, prefix, policy, 1)) - base;
    const double expected = PrefixRecomputeFlops(shape.config, prefix).total() +
                            4 * SuffixRecomputeFlops(shape.config, 1023, 256, policy).total();
    EXPECT_NEAR(added, expected, 1e-9 * base) << v1::TapePolicy_Name(policy);
  }
  PrefixShape again = all;
  again.policy = v1::S5;
  EXPECT_NEAR(FlopUnits(ClusterWork(shape, cluster, again, v1::S0, 1)) - base, PrefixFlops(shape.config, 1023).forward,
              1e-9 * base);
}

TEST(CostModelTest, LessOnTheTapeNeverCostsLessWork) {
  const ByteShape shape = Shape();
  double before = 0;
  for (const v1::TapePolicy policy : {v1::S0, v1::S1, v1::S2, v1::S3, v1::S4}) {
    const PrefixShape prefix = {.rows = 1023, .longest_rows = 1023, .policy = policy};
    const double seconds =
        Seconds(ClusterWork(shape, OneGroup(1023, 256, 4), prefix, policy, 1), testing::BenchRates()).total();
    EXPECT_GT(seconds, before) << v1::TapePolicy_Name(policy);
    before = seconds;
  }
}

TEST(CostModelTest, CopiesThatOverlapCostOnlyWhatComputeDoesNotHide) {
  const ByteShape shape = Shape();
  const PrefixShape prefix = {.rows = 1023, .longest_rows = 1023, .policy = v1::S0, .offload = true};
  PrefixShape resident = prefix;
  resident.offload = false;
  Rates rates = testing::BenchRates();
  const auto seconds = [&](const PrefixShape& p) {
    return Seconds(ClusterWork(shape, OneGroup(1023, 256, 4), p, v1::S0, 1), rates).total();
  };
  const double copies = 2 * rates.seconds[kCopy] * static_cast<double>(HostTapeBytes(shape, prefix));
  EXPECT_NEAR(seconds(prefix), seconds(resident) + copies, 1e-12);
  rates.copies_overlap = true;
  EXPECT_NEAR(seconds(prefix), seconds(resident), 1e-12);
  rates.seconds[kCopy] *= 1000;  // a link that nothing hides
  EXPECT_GT(seconds(prefix), 10 * seconds(resident));
}

PackingGroup Packing(int64_t prefix_rows, int64_t rows, uint32_t count) {
  PackingGroup group;
  group.uid = "g";
  group.prefix_rows = prefix_rows;
  for (uint32_t i = 0; i < count; ++i) group.members.push_back({i, rows});
  return group;
}

TEST(GroupCostTest, SpeedupIsThePapersFormula) {
  const MemoryOptions options = BenchMemory(int64_t{8} << 30);
  double before = 0;
  for (const uint32_t count : {2u, 4u, 8u, 32u}) {
    const v1::GroupCost cost = GroupCostOf(options, Packing(1023, 256, count));
    EXPECT_NEAR(cost.speedup(), 1 / (cost.rho() / count + cost.eta() + cost.epsilon()), 1e-9);
    EXPECT_NEAR(cost.rho() + cost.eta(), 1, 0.05) << "the two halves of a dense trajectory";
    EXPECT_GT(cost.epsilon(), 0);
    EXPECT_GT(cost.speedup(), before);
    before = cost.speedup();
  }
}

TEST(GroupCostTest, AutoTakesTheFasterAndTheOneThatFits) {
  const MemoryOptions options = BenchMemory(int64_t{8} << 30);
  PackingGroup shared = Packing(1023, 256, 8);
  EXPECT_EQ(ChooseReuse(options, v1::AUTO, 0, shared).substr(0, 12), "reuse: saves");
  EXPECT_TRUE(shared.reuse);
  PackingGroup single = Packing(1023, 256, 1);
  EXPECT_EQ(ChooseReuse(options, v1::AUTO, 0, single), "dense: one rollout shares nothing");
  PackingGroup tiny = Packing(1, 512, 3);
  EXPECT_EQ(ChooseReuse(options, v1::AUTO, 0, tiny).substr(0, 16), "dense: reuse wou");
  const int64_t dense_bytes = ChooseMemory(BenchMemory(1 << 20), GroupShape(single, /*reuse=*/false)).bytes_needed;
  const int64_t reuse_bytes = ChooseMemory(BenchMemory(1 << 20), GroupShape(single, /*reuse=*/true)).bytes_needed;
  ASSERT_LT(reuse_bytes, dense_bytes) << "blocks make reuse the smaller one";
  EXPECT_EQ(ChooseReuse(BenchMemory(reuse_bytes), v1::AUTO, 0, single),
            "reuse: a whole trajectory does not fit the budget");
}

}  // namespace
}  // namespace stemma
