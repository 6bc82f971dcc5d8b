#include "common/cost.h"

#include <gtest/gtest.h>

namespace stemma {
namespace {

ModelConfig Llama3_8B() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 128256;
  config.hidden_size = 4096;
  config.num_layers = 32;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_size = 128;
  config.ffn_size = 14336;
  return config;
}

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

TEST(CostTest, KeepAllOfAKnownModelTakesTheKnownBytesPerTokenAndLayer) {
  // Llama3-8B in bf16, all activations of a layer: 139,392 bytes a token (x, norm, q, k, v, out, LSE, x2, norm2, gate,
  // up, silu·up); ours also keeps two fp32 norm statistics, 8 bytes.
  ByteShape shape;
  shape.config = Llama3_8B();
  shape.run_bytes = 2;
  ByteShape one_more = shape;
  one_more.config.num_layers += 1;
  const int64_t gradient_kv = 2 * 1024 * 4;
  EXPECT_EQ(PrefixBytes(one_more, 1000) - PrefixBytes(shape, 1000), 1000 * (139392 + 8 + gradient_kv));
}

}  // namespace
}  // namespace stemma
