#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/cost/block_cost.h"
#include "common/cost/flops.h"
#include "common/cost/prefix_bytes.h"
#include "common/cost/wave_bytes.h"
#include "tests/common/model/small_configs.h"
#include "tests/testing/draw.h"
#include "tests/testing/one_segment.h"

namespace stemma {
namespace {

using testing::Draw;
using testing::OneSegment;

double Ideal(const ModelConfig& config, int64_t prefix, int64_t suffix, double n) {
  const double reuse = PrefixFlops(config, prefix).total() + n * SuffixFlops(config, prefix, suffix).total();
  return n * DenseFlops(config, prefix, suffix).total() / reuse;
}

// The limits of Llama3-8B at 10,240 prefix and 2,048 suffix tokens when both sides prune the last layer, worked out
// elsewhere to three digits.
TEST(CostTest, TheIdealSpeedUpOfAKnownModelIsTheKnownOne) {
  const struct {
    double n, ideal;
  } kKnown[] = {{2, 1.659}, {4, 2.473}, {8, 3.278}, {16, 3.914}, {32, 4.336}, {128, 4.716}};
  for (const auto& known : kKnown) {
    EXPECT_NEAR(Ideal(Llama3_8B(), 10240, 2048, known.n), known.ideal, 5e-4) << known.n;  // printed to three digits
  }
}

TEST(CostTest, OneSequenceOfAKnownModelTakesTheKnownFlops) {
  // 12,288 tokens, nothing pruned: 514.6 TFLOP in linear layers and 118.8 in attention; ours drops, in the last layer,
  // all but K and V of the prefix, and the head of the prefix.
  const ModelConfig config = Llama3_8B();
  const double prefix = 10240, layer_parameters = 218103808, kv_parameters = 2.0 * 4096 * 1024;
  const double head = 6.0 * 4096 * 128256 * 2048;
  const double attention_pruned = 12.0 * 4096 * prefix * (prefix + 1) / 2;
  const double linear_pruned = 6.0 * (layer_parameters - kv_parameters) * prefix;
  const double whole = DenseFlops(config, 10240, 2048).total() - head + attention_pruned + linear_pruned;
  EXPECT_NEAR(whole / 1e12, 514.6 + 118.8, 0.1);  // both are printed to one digit
}

TEST(CostTest, BackwardIsTwiceForward) {
  const Flops flops = DenseFlops(Llama3_8B(), 100, 7);
  EXPECT_DOUBLE_EQ(flops.backward, 2 * flops.forward);
}

TEST(CostTest, NoPrefixCostsNothing) { EXPECT_EQ(PrefixFlops(Llama3_8B(), 0).total(), 0); }

// Llama3-8B in bf16, bytes a token and layer, K and V included: x 8192, norm1 8192, q 8192, k and v 4096, attention out
// 8192, LSE 128, x2 8192, norm2 8192, gate and up 57344, silu·up 28672. Ours also keeps two fp32 norm statistics.
TEST(CostTest, TapePoliciesOfAKnownModelTakeTheKnownBytesPerTokenAndLayer) {
  ByteShape shape;
  shape.config = Llama3_8B();
  shape.run_bytes = 2;
  ByteShape one_more = shape;
  one_more.config.num_layers += 1;
  constexpr int64_t kStatistics = 8, kRows = 1000;
  for (const auto& [policy, bytes] : {std::pair<v1::TapePolicy, int64_t>{v1::S0, 139392 + kStatistics},
                                      {v1::S1, 94336 + kStatistics},
                                      {v1::S2, 36992 + kStatistics},
                                      {v1::S3, 28800 + kStatistics},
                                      {v1::S4, 12288}}) {
    const WaveShape wave{.rows = kRows, .policy = policy};
    EXPECT_EQ(SuffixBytes(one_more, {}, wave).wave_tape - SuffixBytes(shape, {}, wave).wave_tape, kRows * bytes)
        << v1::TapePolicy_Name(policy);
  }
}

// Qwen3-30B-A3B: 18,874,368 weights of attention, 2048 x 128 of the router, and of 128 experts 8 that a row passes,
// each of 3 x 2048 x 768.
ModelConfig Qwen3MoeA3B() {
  ModelConfig config = {.model_type = "qwen3_moe",
                        .vocab_size = 151936,
                        .hidden_size = 2048,
                        .num_layers = 48,
                        .num_heads = 32,
                        .num_kv_heads = 4,
                        .head_size = 128,
                        .ffn_size = 768,
                        .qk_norm = true};
  config.experts = Experts{.count = 128, .per_token = 8};
  return config;
}

TEST(CostTest, ARowPaysForTheExpertsThatItPassesAndForTheRouter) {
  const double rows = 100, pairs = rows * 50 + rows * (rows + 1) / 2;
  const double layer = 18874368 + 2048.0 * 128 + 8 * 3 * 2048.0 * 768;
  const double expected = 48 * (2 * rows * layer + 4 * 4096 * pairs) + 2 * rows * 2048 * 151936;
  EXPECT_DOUBLE_EQ(SuffixFlops(Qwen3MoeA3B(), 50, 100).forward, expected);
  const double gate_up = 48 * 2 * rows * 8 * 2 * 2048 * 768;
  EXPECT_DOUBLE_EQ(SuffixRecomputeParts(Qwen3MoeA3B(), OneSegment(50, 100), v1::S2).total(), gate_up);
  const double qkv = 48 * 2 * rows * 2048 * (4096 + 1024), output = 48 * (2 * rows * 4096 * 2048 + 4 * 4096 * pairs);
  EXPECT_DOUBLE_EQ(SuffixRecomputeParts(Qwen3MoeA3B(), OneSegment(50, 100), v1::S4).total(), gate_up + qkv + output)
      << "the choice is kept";
}

TEST(CostTest, ATensorParallelRankMultipliesItsOwnRowsWithTheRouter) {
  const double router = 2048.0 * 128, experts = 8 * 3 * 2048.0 * 768;
  EXPECT_EQ(ForwardCost(Qwen3MoeA3B(), Block::kMlp, 4).weights - experts, router / 4);
}

TEST(CostTest, APassReadsAllExperts) {
  const BlockCost mlp = ForwardCost(Qwen3MoeA3B(), Block::kMlp);
  EXPECT_EQ(mlp.weights, 2048.0 * 128 + 8 * 3 * 2048.0 * 768);
  EXPECT_EQ(mlp.read, 2048.0 * 128 + 128 * 3 * 2048.0 * 768);
  for (const Block block : {Block::kAttention, Block::kKeyValue, Block::kMlp, Block::kHead}) {
    const BlockCost dense = ForwardCost(Llama3_8B(), block);
    EXPECT_EQ(dense.read, dense.weights);
  }
}

// Bytes a token and layer in bf16: x, norm1, x2 and norm2 4096 each; q before and behind its norm 8192 each, k and v
// 2048 twice, a statistic for each of 36 heads; attention out 8192, LSE 128; gate, up and silu·up of 8 experts 36864;
// their numbers 64 and weights 32; two statistics 8.
TEST(CostTest, ATapeOfExpertsTakesTheKnownBytesPerTokenAndLayer) {
  ByteShape shape;
  shape.config = Qwen3MoeA3B();
  shape.run_bytes = 2;
  ByteShape one_more = shape;
  one_more.config.num_layers += 1;
  constexpr int64_t kRows = 1000, kAll = 4 * 4096 + 2 * 8192 + 2 * 2048 + 4 * 36 + 8192 + 128 + 36864 + 96 + 8;
  const auto tape = [&](v1::TapePolicy policy) {
    const WaveShape wave{.rows = kRows, .policy = policy};
    return SuffixBytes(one_more, {}, wave).wave_tape - SuffixBytes(shape, {}, wave).wave_tape;
  };
  EXPECT_EQ(tape(v1::S0), kRows * kAll);
  EXPECT_EQ(tape(v1::S1), kRows * (kAll - 2 * 4096 - 12288));
  EXPECT_EQ(tape(v1::S4), kRows * (4096 + 2048 + 96));
  const int64_t kept = tape(v1::S3);
  shape.config.experts->weights_sum_to_one = one_more.config.experts->weights_sum_to_one = false;
  EXPECT_EQ(tape(v1::S3) - kept, kRows * 128 * 4) << "all probabilities";
  EXPECT_EQ(tape(v1::S4), kRows * (4096 + 2048 + 96 + 128 * 4));
}

// Beside the queries, QK-norm keeps q, k and v before it and a statistic for each head.
TEST(CostTest, QkNormKeepsWhatItNormalizes) {
  ByteShape plain;
  plain.config = Llama3_8B();
  plain.run_bytes = 2;
  ByteShape normed = plain;
  normed.config.qk_norm = true;
  const WaveShape wave{.rows = 1000};
  const int64_t kept = 2 * (4096 + 2 * 1024) + 4 * (32 + 8);
  EXPECT_EQ(SuffixBytes(normed, {}, wave).wave_tape - SuffixBytes(plain, {}, wave).wave_tape, 1000 * 32 * kept);
}

TEST(CostTest, RecomputingTheGateAndUpProductsCostsTheirForward) {
  const ModelConfig config = Llama3_8B();
  const double products = 2.0 * 100 * 2 * 4096 * 14336 * 32;
  EXPECT_EQ(SuffixRecomputeParts(config, OneSegment(50, 100), v1::S1).total(), 0);
  EXPECT_DOUBLE_EQ(SuffixRecomputeParts(config, OneSegment(50, 100), v1::S2).total(), products);
}

// What each policy restores by products: gate and up; q, k and v, which are one product; the attention and its output.
TEST(CostTest, RecomputingAPolicysProductsCostsTheirForward) {
  const ModelConfig config = Llama3_8B();
  const double rows = 100, layers = 32, d = 4096, kv = 1024, ffn = 14336;
  const double pairs = rows * 50 + rows * (rows + 1) / 2;
  const double gate_up = 2 * rows * 2 * d * ffn, qkv = 2 * rows * d * (d + 2 * kv);
  const double attention = 4 * d * pairs + 2 * rows * d * d;
  EXPECT_DOUBLE_EQ(SuffixRecomputeParts(config, OneSegment(50, 100), v1::S2).total(), layers * gate_up);
  EXPECT_DOUBLE_EQ(SuffixRecomputeParts(config, OneSegment(50, 100), v1::S3).total(), layers * (gate_up + qkv));
  EXPECT_DOUBLE_EQ(SuffixRecomputeParts(config, OneSegment(50, 100), v1::S4).total(),
                   layers * (gate_up + qkv + attention));
  const double own_pairs = rows * (rows + 1) / 2;
  EXPECT_DOUBLE_EQ(PrefixRecomputeParts(ByteShape{.config = config}, OneSegment(0, 100), v1::S4).total(),
                   (layers - 1) * (gate_up + qkv + 4 * d * own_pairs + 2 * rows * d * d));
}

TEST(CostTest, AForgottenPrefixIsRunForwardAgain) {
  const ModelConfig config = Llama3_8B();
  EXPECT_DOUBLE_EQ(PrefixRecomputeParts(ByteShape{.config = config}, OneSegment(0, 100), v1::S5).total(),
                   PrefixFlops(config, 100).forward);
}

// Suffixes behind a prefix, and a trajectory that computes its prefix itself.
std::vector<WaveRun> DrawRuns(Draw& draw) {
  WaveRun suffixes = {.rows = draw.Between(5, 900), .ancestor_rows = draw.Between(0, 500)};
  suffixes.longest_rows = draw.Between(1, suffixes.rows);
  WaveRun dense = {.rows = draw.Between(5, 900)};
  dense.longest_rows = dense.rows;
  dense.kv_only_rows = draw.Between(1, dense.rows - 4);
  return {suffixes, dense};
}

// Each run up to four times, and a few rows shorter.
WaveShape DrawWave(std::vector<WaveRun> runs, Draw& draw) {
  WaveShape wave;
  for (WaveRun& run : runs) {
    if (draw.Chance(50)) run.rows -= draw.Between(0, 3);
    run.longest_rows = std::min(run.longest_rows - draw.Between(0, 1), run.rows);
    for (int64_t times = draw.Between(0, 4); times > 0; --times) {
      wave.rows += run.rows;
      wave.kv_only_rows += run.kv_only_rows;
      AddRun(run, wave);
    }
  }
  return wave;
}

ByteShape DrawShape(Draw& draw) {
  ByteShape shape;
  shape.config = draw.Chance(50) ? Llama3_8B() : SmallQwen3();
  shape.run_bytes = draw.Of<int64_t>({2, 4});
  shape.threads = draw.Of<int64_t>({1, 256});  // then attention's scratch is what a wave needs most
  shape.head_chunk_rows = draw.Of<int64_t>({64, 512});
  return shape;
}

TEST(CostTest, AWaveThatCoversAnotherNeedsAtLeastItsBytes) {
  int covered = 0;
  for (uint64_t seed = 0; seed < 6000; ++seed) {
    SCOPED_TRACE(testing::FirstSeed() + seed);
    Draw draw(testing::FirstSeed() + seed);
    const ByteShape shape = DrawShape(draw);
    const std::vector<WaveRun> runs = DrawRuns(draw);
    WaveShape a = DrawWave(runs, draw), b = DrawWave(runs, draw);
    a.policy = b.policy = draw.Of<v1::TapePolicy>({v1::S0, v1::S4});
    if (!Covers(a, b)) continue;
    ++covered;
    EXPECT_GE(WaveBytes(shape, a).peak(), WaveBytes(shape, b).peak());
    EXPECT_GE(WaveKeptBytes(shape, a), WaveKeptBytes(shape, b));
    EXPECT_GE(ForwardWaveBytes(shape, a), ForwardWaveBytes(shape, b));
  }
  EXPECT_GT(covered, 300) << "many pairs must be compared";
}

// With policy S5 and blocks, only K/V and their gradients grow with the prefix.
TEST(CostTest, BlocksOfAForgottenPrefixTakeTheSameBytesBeyondItsKv) {
  ByteShape shape;
  shape.config = Llama3_8B();
  shape.run_bytes = 2;
  const auto beyond = [&](int64_t rows) {
    const PhaseBytes bytes = PrefixBackwardBytes(shape, {.rows = rows, .block_rows = 1024, .policy = v1::S5});
    return bytes.dormant_set;
  };
  EXPECT_EQ(beyond(8192), beyond(65536));
}

}  // namespace
}  // namespace stemma
