// What a mesh asks of a model: refused with every reason, and the nearest one that is allowed, against brute force.
#include "common/model/mesh_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <tuple>

#include "common/base/mesh.h"
#include "common/model/families.h"
#include "common/model/model_shard.h"

namespace stemma {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModelConfig DrawModel(std::mt19937& random) {
  const auto draw = [&](int64_t low, int64_t high) { return low + static_cast<int64_t>(random() % (high - low + 1)); };
  ModelConfig config;
  config.SetFamily(*FindFamily("qwen3"));
  config.num_kv_heads = draw(1, 8);
  config.num_heads = config.num_kv_heads * draw(1, 4);
  config.head_size = 8;
  config.hidden_size = 16;
  config.ffn_size = draw(1, 4) * (draw(0, 1) == 1 ? 24 : 7);
  config.num_layers = draw(1, 4);
  config.vocab_size = draw(2, 40);
  config.rms_norm_eps = 1e-6;
  if (draw(0, 1) == 1) config.experts = Experts{.count = draw(1, 8), .per_token = 1};
  return config;
}

// Every rank has whole heads, as many experts and FFN columns as the others, a token and a layer.
bool CanHold(const ModelConfig& c, int64_t tp, int64_t pp, int64_t ep) {
  const bool heads = c.num_heads % tp == 0 && (c.num_kv_heads % tp == 0 || tp % c.num_kv_heads == 0);
  const bool experts = ep == 1 || (c.experts && c.experts->count % ep == 0 && tp % ep == 0);
  return heads && experts && c.ffn_size % (tp / ep) == 0 && c.vocab_size >= tp && c.num_layers >= pp;
}

// The largest size of ep up to `most` with which tp can be; 0: none.
int64_t LargestEp(const ModelConfig& c, int64_t tp, int64_t most) {
  int64_t largest = 0;
  for (int64_t ep = 1; ep <= std::min(tp, most); ++ep) {
    if (CanHold(c, tp, 1, ep)) largest = ep;
  }
  return largest;
}

class MeshRulesTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(MeshRulesTest, ProblemsAreThereWhereARankHasNoShardAndTheNearestMeshIsTheBest) {
  std::mt19937 random(GetParam());
  const auto draw = [&](uint32_t most) { return 1 + static_cast<uint32_t>(random() % most); };
  for (int i = 0; i < 20; ++i) {
    const ModelConfig config = DrawModel(random);
    const v1::Mesh mesh = MakeMesh({.dp = draw(5), .pp = draw(5), .cp = draw(3), .tp = draw(12), .ep = draw(4)});
    const int64_t asked = EpSize(mesh);
    const bool can_hold = CanHold(config, TpSize(mesh), PpSize(mesh), asked);
    EXPECT_EQ(TensorParallelProblems(config, TpSize(mesh), asked).empty(), CanHold(config, TpSize(mesh), 1, asked));
    EXPECT_EQ(PipelineProblems(config, PpSize(mesh)).empty(), CanHold(config, 1, PpSize(mesh), 1));
    EXPECT_EQ(CheckMesh(config, mesh).ok(), can_hold);
    auto best = std::tuple(int64_t{0}, int64_t{0}, int64_t{0}, int64_t{0});
    for (int64_t pp = 1; pp <= PpSize(mesh); ++pp) {
      for (int64_t tp = 1; pp * tp <= NumRanks(mesh); ++tp) {
        const int64_t ep = LargestEp(config, tp, asked);
        if (ep == 0 || !CanHold(config, tp, pp, ep)) continue;
        const auto found =
            std::tuple(NumRanks(mesh) / (pp * tp) * pp * tp, -std::abs(tp - int64_t{TpSize(mesh)}), pp, -tp);
        best = std::max(best, found);
      }
    }
    const v1::Mesh nearest = NearestMesh(config, mesh);
    EXPECT_EQ(int64_t{TpSize(nearest)}, -std::get<3>(best)) << MeshText(mesh);
    EXPECT_EQ(int64_t{PpSize(nearest)}, std::get<2>(best)) << MeshText(mesh);
    EXPECT_EQ(NumRanks(nearest), std::get<0>(best)) << MeshText(mesh);
    EXPECT_EQ(EpSize(nearest), LargestEp(config, TpSize(nearest), asked)) << MeshText(mesh);
    EXPECT_EQ(CpSize(mesh) % CpSize(nearest), 0U) << MeshText(mesh);
    EXPECT_EQ(SameMesh(nearest, mesh), can_hold);
    const ShardPlace last = {.tp_rank = TpSize(mesh) - 1,
                             .tp_size = TpSize(mesh),
                             .pp_rank = PpSize(mesh) - 1,
                             .pp_size = PpSize(mesh),
                             .ep_size = asked};
    EXPECT_EQ(MakeModelShard(config, last).ok(), can_hold);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, MeshRulesTest, ::testing::Range(1u, 11u));

TEST(MeshRulesErrorTest, EveryProblemIsSaidWithTheNearestMesh) {
  ModelConfig config;
  config.SetFamily(*FindFamily("llama"));
  config.num_heads = 8;
  config.num_kv_heads = 2;
  config.head_size = 16;
  config.hidden_size = 64;
  config.ffn_size = 100;
  config.num_layers = 3;
  config.vocab_size = 4;
  EXPECT_THAT(std::string(CheckMesh(config, MakeMesh({.dp = 1, .tp = 2})).message()), HasSubstr("rms_norm_eps is 0"));
  config.rms_norm_eps = 1e-6;
  const std::string text(CheckMesh(config, MakeMesh({.dp = 2, .tp = 7})).message());
  EXPECT_THAT(text,
              AllOf(HasSubstr("mesh dp=2,tp=7"), HasSubstr("8 attention heads"), HasSubstr("100 FFN columns"),
                    HasSubstr("2 K/V heads"), HasSubstr("4 tokens"), HasSubstr("nearest"), HasSubstr("dp=7,tp=2")));
  EXPECT_THAT(std::string(CheckMesh(config, MakeMesh({.dp = 4096, .tp = 4})).message()),
              AllOf(HasSubstr("16384 ranks, more than 4096"), HasSubstr("dp=1024,tp=4")));
  EXPECT_THAT(std::string(CheckMesh(config, MakeMesh({.pp = 4, .tp = 2})).message()),
              AllOf(HasSubstr("pp: 4 stages are more than the model's 3 layers"), HasSubstr("dp=2,pp=2,tp=2")));
  EXPECT_TRUE(CheckMesh(config, MakeMesh({.dp = 2, .tp = 4})).ok()) << "two ranks hold each K/V head";
}

}  // namespace
}  // namespace stemma
