// Work in parts is the FLOPs of common/cost/flops.h, split; seconds are linear in it; S(N) follows.
#include "server/planner/cost_model.h"

#include <algorithm>

#include "common/cost/rank_shape.h"
#include "common/cost/tensor_parallel_cost.h"
#include "gtest/gtest.h"
#include "server/planner/group_cost.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/testing/one_segment.h"

namespace stemma::server {
namespace {

using testing::BenchMemory;
using testing::BenchModel;
using testing::OneGroup;
using testing::OneSegment;

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
    const PrefixShape whole = {.rows = prefix};
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
  const PrefixShape all = {.rows = 1023};
  const double base = FlopUnits(ClusterWork(shape, cluster, all, v1::S0, 1));
  for (const v1::TapePolicy policy : {v1::S1, v1::S2, v1::S3, v1::S4}) {
    PrefixShape prefix = all;
    prefix.policy = policy;
    const double added = FlopUnits(ClusterWork(shape, cluster, prefix, policy, 1)) - base;
    const double expected = PrefixRecomputeParts(shape, OneSegment(0, prefix.rows), policy).total() +
                            4 * SuffixRecomputeParts(shape.config, OneSegment(1023, 256), policy).total();
    EXPECT_NEAR(added, expected, 1e-9 * base) << v1::TapePolicy_Name(policy);
  }
  PrefixShape again = all;
  again.policy = v1::S5;
  EXPECT_NEAR(FlopUnits(ClusterWork(shape, cluster, again, v1::S0, 1)) - base, PrefixFlops(shape.config, 1023).forward,
              1e-9 * base);
}

ByteShape RankOf(uint32_t tp) {
  v1::RunConfig run;
  run.set_dtype("fp32");
  run.set_head_chunk_tokens(512);
  run.mutable_mesh()->set_tp(tp);
  return RankShape(BenchModel(), run);
}

TEST(CostModelTest, RanksOfACopyShareItsWork) {
  const ByteShape whole = RankOf(1), rank = RankOf(2);
  const ClusterShape cluster = OneGroup(1024, 256, 4);
  for (const v1::TapePolicy policy : {v1::S0, v1::S1, v1::S4}) {
    const PrefixShape prefix = {.rows = 1024, .block_rows = 512, .policy = policy};
    const PhaseWork all = ClusterWork(whole, cluster, prefix, policy, 2),
                    half = ClusterWork(rank, cluster, prefix, policy, 2);
    for (const auto phase : {&PhaseWork::prefix_forward, &PhaseWork::suffix, &PhaseWork::prefix_backward}) {
      for (const Rate rate : {kLinear, kAttentionForward, kAttentionBackward, kHead, kElement, kMerge, kScoreBlock,
                              kWave, kWaveBackward}) {
        const double units = (all.*phase)[rate];
        EXPECT_NEAR(2 * (half.*phase)[rate], units, 1e-9 * units) << kRateNames[rate];
      }
      for (const LinkRates& link : kLinkRates) {
        EXPECT_EQ((all.*phase)[link.byte], 0) << kRateNames[link.byte];
        EXPECT_EQ((all.*phase)[link.message], 0) << kRateNames[link.message];
        if (link.byte == kTensorByte) continue;
        EXPECT_EQ((half.*phase)[link.byte], 0) << kRateNames[link.byte];
        EXPECT_EQ((half.*phase)[link.message], 0) << kRateNames[link.message];
      }
    }
  }
}

TEST(CostModelTest, WhatARankSendsCostsSeconds) {
  const ByteShape rank = RankOf(2);
  const ClusterShape cluster = OneGroup(1024, 256, 4), dense = OneGroup(1024, 256, 4, /*reuse=*/false);
  const PrefixShape prefix = {.rows = 1024, .block_rows = 512, .policy = v1::S2};
  const PhaseWork work = ClusterWork(rank, cluster, prefix, v1::S4, 2);
  EXPECT_EQ(work.prefix_forward[kTensorByte], static_cast<double>(PrefixForwardTensorSent(rank, prefix).total()));
  EXPECT_EQ(work.prefix_backward[kTensorByte], static_cast<double>(PrefixBackwardTensorSent(rank, prefix).total()));
  const auto both_ways = [&](int64_t rows, int64_t kv_only, v1::TapePolicy policy) {
    TensorSentBytes sent = WaveForwardTensorSent(rank, rows, kv_only, /*entropy=*/true);
    return sent += WaveBackwardTensorSent(rank, rows, kv_only, policy);
  };
  const TensorSentBytes wave = both_ways(512, 0, v1::S4);
  EXPECT_EQ(work.suffix[kTensorByte], static_cast<double>(2 * wave.total()));
  EXPECT_EQ(work.suffix[kTensorCollective], static_cast<double>(2 * wave.row_collectives + 2 * wave.head_collectives));
  EXPECT_EQ(ClusterWork(rank, dense, {}, v1::S1, 4).suffix[kTensorByte],
            static_cast<double>(4 * both_ways(1280, 1024, v1::S1).total()));
  EXPECT_EQ(ForwardClusterWork(rank, cluster, 2).suffix[kTensorByte],
            static_cast<double>(2 * WaveForwardTensorSent(rank, 512, 0, /*entropy=*/false).total()));
  // What a policy gathers again costs more where the network is slow.
  Rates rates = DefaultRates(RunDtype::kFp32, 2, "cpu");
  for (const LinkRates& link : kLinkRates) {
    EXPECT_EQ(rates[link.byte], rates[kCopy]) << "until it is measured";
    EXPECT_EQ(rates[link.message], kMessageSeconds);
  }
  const auto added_s = [&] {
    return Seconds(ClusterWork(rank, cluster, prefix, v1::S1, 2).suffix, rates) -
           Seconds(ClusterWork(rank, cluster, prefix, v1::S0, 2).suffix, rates);
  };
  const double fast = added_s();
  rates[kTensorByte] *= 10;
  EXPECT_GT(added_s(), 1.5 * fast);
}

TEST(CostModelTest, LessOnTheTapeNeverCostsLessWork) {
  const ByteShape shape = Shape();
  double before = 0;
  for (const v1::TapePolicy policy : {v1::S0, v1::S1, v1::S2, v1::S3, v1::S4}) {
    const PrefixShape prefix = {.rows = 1023, .policy = policy};
    const double seconds =
        Seconds(ClusterWork(shape, OneGroup(1023, 256, 4), prefix, policy, 1), testing::BenchRates()).total();
    EXPECT_GT(seconds, before) << v1::TapePolicy_Name(policy);
    before = seconds;
  }
}

// One head and layer as worker/backend/cpu/attention.cc runs it: blocks of queries, each over blocks of keys, by how
// much of 128 x 128 scores each block has; half a block more for what is around a span's call.
double KernelBlocks(int64_t queries, int64_t keys, bool causal) {
  double blocks = causal ? 1 : 0;
  for (int64_t first = 0; first < queries; first += 128) {
    const int64_t rows = std::min<int64_t>(128, queries - first), seen = causal ? first + rows : keys;
    for (int64_t key = 0; key < seen; key += 128) {
      blocks += static_cast<double>(rows * std::min<int64_t>(128, seen - key)) / (128 * 128);
    }
  }
  return blocks;
}

TEST(CostModelTest, BlocksOfScoresAreThoseOfTheKernel) {
  const ByteShape shape = Shape();
  const double heads = 8, layers = 8;
  for (const int64_t prefix : {40, 700, 1023}) {
    const PrefixShape whole = {.rows = prefix};
    PrefixShape cut = whole;
    cut.block_rows = 512;
    const auto work = [&](const PrefixShape& p, bool reuse) {
      return ClusterWork(shape, OneGroup(prefix, 256, 3, reuse), reuse ? p : PrefixShape{}, v1::S0, 1);
    };
    const double a = KernelBlocks(prefix, prefix, true);
    EXPECT_NEAR(work(whole, true).prefix_forward[kScoreBlock], heads * (layers - 1) * a, 1e-6);
    if (prefix > 512) {
      const double blocks = KernelBlocks(512, 512, true) + KernelBlocks(prefix - 512, prefix - 512, true);
      const double earlier = KernelBlocks(prefix - 512, 512, false);
      EXPECT_NEAR(work(cut, true).prefix_forward[kScoreBlock], heads * (layers - 1) * (blocks + earlier), 1e-6);
    }
    const double own = KernelBlocks(256, 256, true);
    const double over = KernelBlocks(256, prefix, false);
    // And one for what is around the wave's call over its prefix.
    EXPECT_NEAR(work(whole, true).suffix[kScoreBlock], (1 + 2.4) * heads * layers * (3 * (own + over) + 1), 1e-6);
    const double dense = KernelBlocks(prefix + 256, prefix + 256, true);
    EXPECT_NEAR(work(whole, false).suffix[kScoreBlock], (1 + 2.4) * 3 * heads * ((layers - 1) * dense + own + over),
                1e-6);
  }
}

// Backward counts 2.4 times as much as forward, and what the policy dropped runs forward a second time.
TEST(CostModelTest, APolicyWithoutAttentionWorksThroughItsScoresAgain) {
  const ByteShape shape = Shape();
  for (const bool reuse : {true, false}) {
    const auto work = [&](v1::TapePolicy policy) {
      const PrefixShape prefix = {.rows = reuse ? 700 : 0, .policy = policy};
      return ClusterWork(shape, OneGroup(700, 256, 3, reuse), prefix, policy == v1::S5 ? v1::S4 : policy, 1);
    };
    const PhaseWork kept = work(v1::S3);
    for (const v1::TapePolicy policy : {v1::S4, v1::S5}) {
      const PhaseWork again = work(policy);
      EXPECT_NEAR(again.suffix[kScoreBlock], kept.suffix[kScoreBlock] * 4.4 / 3.4, 1e-6);
      EXPECT_NEAR(again.prefix_backward[kScoreBlock], kept.prefix_forward[kScoreBlock] * 3.4, 1e-6);
    }
    EXPECT_NEAR(kept.prefix_backward[kScoreBlock], kept.prefix_forward[kScoreBlock] * 2.4, 1e-6);
  }
}

// Groups of a wave differ in prefix, rows and schedule: each member has its own price.
TEST(CostModelTest, AWaveOfSeveralGroupsCostsTheSumOfItsMembers) {
  const ByteShape shape = Shape();
  const ClusterShape cluster = testing::MixedCluster();
  const PrefixShape prefix = {.rows = PackedPrefixRows(cluster), .lengths = cluster.prefix_rows};
  for (const v1::TapePolicy policy : {v1::S0, v1::S2, v1::S4}) {
    const Work together = ClusterWork(shape, cluster, prefix, policy, 1).suffix;
    const Work forward = ForwardClusterWork(shape, cluster, 1).suffix;
    Work sum, forward_sum;
    for (const MemberShape& member : cluster.members) {
      ClusterShape one;
      if (!member.dense) one.prefix_rows = {member.prefix_rows};
      one.members = {member};
      sum += ClusterWork(shape, one, {}, policy, 0).suffix;
      forward_sum += ForwardClusterWork(shape, one, 0).suffix;
    }
    // The one wave's call over its prefixes, which the members' sum is without.
    const double call = 8 * 8;
    forward_sum[kScoreBlock] += call;
    sum[kScoreBlock] += call * (policy == v1::S4 ? 2 + 2.4 : 1 + 2.4);
    for (const Rate kind : {kLinear, kAttentionForward, kAttentionBackward, kHead, kElement, kMerge, kScoreBlock}) {
      EXPECT_NEAR(together[kind], sum[kind], 1e-9 * sum[kind]) << kRateNames[kind];
      EXPECT_NEAR(forward[kind], forward_sum[kind], 1e-9 * forward_sum[kind]) << kRateNames[kind];
    }
  }
}

TEST(CostModelTest, APassOverTheWeightsIsCountedForEachBlockAndWave) {
  const ByteShape shape = Shape();
  const double layer = 512.0 * (2 * 512 + 2 * 256 + 3 * 1408), kv = 512.0 * 2 * 256, head = 512.0 * 4096;
  PrefixShape prefix = {.rows = 1023, .block_rows = 256};
  const PhaseWork kept = ClusterWork(shape, OneGroup(1023, 256, 4), prefix, v1::S0, 3);
  EXPECT_DOUBLE_EQ(kept.prefix_forward[kWave], 4 * (7 * layer + kv));
  EXPECT_DOUBLE_EQ(kept.prefix_forward[kWaveBackward], 0);
  EXPECT_DOUBLE_EQ(kept.suffix[kWave], 3 * (8 * layer + head));
  EXPECT_DOUBLE_EQ(kept.suffix[kWaveBackward], 3 * (8 * layer + head));
  EXPECT_DOUBLE_EQ(kept.prefix_backward[kWave], 0);
  EXPECT_DOUBLE_EQ(kept.prefix_backward[kWaveBackward], 4 * (7 * layer + kv));
  prefix.policy = v1::S5;
  const PhaseWork again = ClusterWork(shape, OneGroup(1023, 256, 4), prefix, v1::S0, 3);
  EXPECT_DOUBLE_EQ(again.prefix_backward[kWave], 4 * (7 * layer + kv));
}

TEST(CostModelTest, CopiesThatOverlapCostOnlyWhatComputeDoesNotHide) {
  const ByteShape shape = Shape();
  const PrefixShape prefix = {.rows = 1023, .policy = v1::S0, .offload = true};
  PrefixShape resident = prefix;
  resident.offload = false;
  Rates rates = testing::BenchRates();
  const auto seconds = [&](const PrefixShape& p) {
    return Seconds(ClusterWork(shape, OneGroup(1023, 256, 4), p, v1::S0, 1), rates).total();
  };
  const double copies = 2 * rates[kCopy] * static_cast<double>(HostTapeBytes(shape, prefix));
  EXPECT_NEAR(seconds(prefix), seconds(resident) + copies, 1e-12);
  rates.copies_overlap = true;
  EXPECT_NEAR(seconds(prefix), seconds(resident), 1e-12);
  rates[kCopy] *= 1000;  // a link that nothing hides
  EXPECT_GT(seconds(prefix), 10 * seconds(resident));
}

PackingGroup Packing(int64_t prefix_rows, int64_t rows, uint32_t count) {
  PackingGroup group;
  group.uid = "g";
  group.prefix_rows = prefix_rows;
  for (uint32_t i = 0; i < count; ++i) group.members.push_back({i, rows});
  return group;
}

TEST(CostModelTest, StatesInHostMemoryCostTheirWayThereAndBack) {
  const auto parameter_s = [](const char* dtype, const char* device, v1::OptimizerResidency residency) {
    return DefaultRates(RunDtypeOf(dtype), 2, device, residency)[kParameter];
  };
  const double copy_s = DefaultRates(RunDtype::kFp32, 2, "cpu")[kCopy];
  const double fp32_s = parameter_s("fp32", "cpu", v1::HOST) - parameter_s("fp32", "cpu", v1::DEVICE);
  const double bf16_s = parameter_s("bf16", "cpu", v1::HOST) - parameter_s("bf16", "cpu", v1::DEVICE);
  EXPECT_NEAR(fp32_s, 2 * 8 * copy_s, 1e-9 * copy_s) << "two moments";
  EXPECT_NEAR(bf16_s, 2 * 12 * copy_s, 1e-9 * copy_s) << "and the master";
  const double link_s = 2 * 12 * DefaultRates(RunDtype::kBf16, 2, "cuda")[kCopy];
  EXPECT_DOUBLE_EQ(parameter_s("bf16", "cuda", v1::HOST), link_s) << "the update runs beside the copies";
}

TEST(CostModelTest, AnUnknownNumberOfThreadsIsRatedAsOne) {
  EXPECT_EQ(DefaultRates(RunDtype::kFp32, 0, "cpu").seconds, DefaultRates(RunDtype::kFp32, 1, "cpu").seconds);
}

TEST(GroupCostTest, SpeedupIsThePapersFormula) {
  MemoryChooser chooser(BenchMemory(int64_t{8} << 30));
  double before = 0;
  for (const uint32_t count : {2u, 4u, 8u, 32u}) {
    const v1::GroupCost cost = GroupCostOf(chooser, Packing(1023, 256, count));
    EXPECT_NEAR(cost.speedup(), 1 / (cost.rho() / count + cost.eta() + cost.epsilon()), 1e-9);
    EXPECT_NEAR(cost.rho() + cost.eta(), 1, 0.05) << "the two halves of a dense trajectory";
    EXPECT_GT(cost.epsilon(), 0);
    EXPECT_GT(cost.speedup(), before);
    before = cost.speedup();
  }
}

TEST(GroupCostTest, AutoTakesTheFasterAndTheOneThatFits) {
  MemoryChooser chooser(BenchMemory(int64_t{8} << 30));
  PackingGroup shared = Packing(1023, 256, 8);
  EXPECT_EQ(ChooseReuse(chooser, v1::AUTO, 0, shared).substr(0, 12), "reuse: saves");
  EXPECT_TRUE(shared.reuse);
  PackingGroup single = Packing(1023, 256, 1);
  EXPECT_EQ(ChooseReuse(chooser, v1::AUTO, 0, single), "dense: one rollout shares nothing");
  PackingGroup tiny = Packing(1, 512, 3);
  EXPECT_EQ(ChooseReuse(chooser, v1::AUTO, 0, tiny).substr(0, 16), "dense: reuse wou");
  const int64_t dense_bytes = ChooseMemory(BenchMemory(1 << 20), GroupShape(single, /*reuse=*/false)).bytes_needed;
  const int64_t reuse_bytes = ChooseMemory(BenchMemory(1 << 20), GroupShape(single, /*reuse=*/true)).bytes_needed;
  ASSERT_LT(reuse_bytes, dense_bytes) << "blocks make reuse the smaller one";
  MemoryChooser small(BenchMemory(reuse_bytes));
  EXPECT_EQ(ChooseReuse(small, v1::AUTO, 0, single), "reuse: a whole trajectory does not fit the budget");
}

}  // namespace
}  // namespace stemma::server
