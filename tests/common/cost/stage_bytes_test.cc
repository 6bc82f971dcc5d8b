// Bytes of pipeline stages: what the layers take adds up to what one rank with all of them takes, and each stage has
// beside it what the place in the pipeline asks for. Cases are drawn; STEMMA_SEED draws others.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/mesh.h"
#include "common/cost/pipeline_cost.h"
#include "common/cost/prefix_bytes.h"
#include "common/cost/rank_shape.h"
#include "common/cost/state_bytes.h"
#include "common/cost/state_shards.h"
#include "common/cost/tensor_parallel_cost.h"
#include "common/cost/wave_bytes.h"
#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

constexpr uint32_t kCases = 60;
constexpr int64_t kIndexBytes = 16;  // token and position of a row

struct DrawnStages {
  ModelConfig model;
  v1::RunConfig run;
  ByteShape whole;
  std::vector<ByteShape> stages;
  PrefixShape prefix;
  WaveShape wave;
};

DrawnStages DrawStages(uint32_t seed) {
  Draw draw(seed);
  DrawnStages drawn;
  ModelConfig& m = drawn.model;
  m = {.model_type = "qwen3"};
  m.vocab_size = draw.Between(100, 5000);
  m.hidden_size = 32 * draw.Between(1, 4);
  m.num_layers = draw.Between(2, 9);
  m.num_heads = 4;
  m.num_kv_heads = draw.Of<int64_t>({2, 4});
  m.head_size = 16;
  m.ffn_size = 64 * draw.Between(1, 3);
  m.max_positions = 512;
  m.qk_norm = draw.Chance(50);
  if (draw.Chance(30)) m.experts = Experts{.count = draw.Between(2, 9), .per_token = draw.Between(1, 2)};
  m.tie_word_embeddings = draw.Chance(50);
  drawn.run.set_dtype(draw.Of<std::string>({"fp32", "bf16", "fp64"}));
  drawn.run.set_head_chunk_tokens(64);
  *drawn.run.mutable_mesh() = MakeMesh({.dp = static_cast<uint32_t>(draw.Between(1, 3)),
                                        .pp = static_cast<uint32_t>(draw.Between(2, m.num_layers)),
                                        .cp = static_cast<uint32_t>(draw.Between(1, 2)),
                                        .tp = static_cast<uint32_t>(draw.Between(1, 2))});
  drawn.whole = RankShape(m, drawn.run);
  drawn.stages = StageShapes(m, drawn.run);
  for (int64_t i = draw.Between(1, 3); i > 0; --i) {
    drawn.prefix.lengths.push_back(draw.LogBetween(4, 600));
    drawn.prefix.rows += drawn.prefix.lengths.back();
  }
  if (draw.Chance(50)) drawn.prefix.block_rows = 8 * draw.Between(1, 20);
  drawn.prefix.policy = static_cast<v1::TapePolicy>(draw.Between(v1::S0, v1::S5));
  drawn.prefix.regather = draw.Chance(50);
  drawn.wave.rows = draw.LogBetween(2, 900);
  drawn.wave.kv_only_rows = draw.Chance(30) ? draw.Between(1, drawn.wave.rows - 1) : 0;
  drawn.wave.policy = static_cast<v1::TapePolicy>(draw.Between(v1::S0, v1::S4));
  return drawn;
}

class StageBytesTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  StageBytesTest() : drawn_(DrawStages(FirstSeed() + GetParam())), trace_(__FILE__, __LINE__, Seed()) {}

  static std::string Seed() { return "STEMMA_SEED " + std::to_string(FirstSeed() + GetParam()); }
  // Rows that a rank has of a tensor as wide as the model, of all blocks of the prefixes.
  int64_t PrefixRowsBytes() const { return PrefixPipelineSent(drawn_.stages.front(), drawn_.prefix).forward; }

  const DrawnStages drawn_;
  const ::testing::ScopedTrace trace_;
};

TEST_P(StageBytesTest, StagesHaveAllLayersOnce) {
  int64_t layers = 0;
  for (size_t s = 0; s < drawn_.stages.size(); ++s) {
    const ByteShape& stage = drawn_.stages[s];
    layers += stage.config.num_layers;
    EXPECT_EQ(stage.first_stage, s == 0);
    EXPECT_EQ(stage.last_stage, s + 1 == drawn_.stages.size());
    EXPECT_EQ(stage.full_layers(), stage.config.num_layers - (stage.last_stage ? 1 : 0));
  }
  EXPECT_EQ(layers, drawn_.model.num_layers);
  EXPECT_TRUE(drawn_.whole.first_stage && drawn_.whole.last_stage);
}

// Index tensors are on every stage; beside them layers' bytes are dealt, and rows between stages added.
TEST_P(StageBytesTest, WhatPrefixesKeepIsThatOfAllLayersAndWhatTravels) {
  const PhaseBytes whole = PrefixKeptBytes(drawn_.whole, drawn_.prefix);
  ByteShape no_layers = drawn_.whole;
  no_layers.config.num_layers = 0;
  no_layers.last_stage = false;
  const int64_t index = ForwardKeptBytes(no_layers, drawn_.prefix), rows = PrefixRowsBytes();
  const bool keeps_inputs = drawn_.prefix.policy == v1::S5;
  int64_t hot_set = 0, dormant_set = 0, kv = 0;
  for (const ByteShape& stage : drawn_.stages) {
    const PhaseBytes kept = PrefixKeptBytes(stage, drawn_.prefix);
    hot_set += kept.hot_set - index;
    dormant_set += kept.dormant_set - (stage.last_stage ? 0 : rows) - (keeps_inputs && !stage.first_stage ? rows : 0);
    kv += ForwardKeptBytes(stage, drawn_.prefix) - index;
  }
  EXPECT_EQ(hot_set, whole.hot_set - index);
  EXPECT_EQ(dormant_set, whole.dormant_set);
  EXPECT_EQ(kv, ForwardKeptBytes(drawn_.whole, drawn_.prefix) - index);
}

TEST_P(StageBytesTest, WhatAWaveKeepsIsThatOfAllLayersAndWhatTravels) {
  const int64_t others = static_cast<int64_t>(drawn_.stages.size()) - 1;
  int64_t kept = 0;
  for (const ByteShape& stage : drawn_.stages) {
    kept += WaveKeptBytes(stage, drawn_.wave) - WavePipelineSent(stage, drawn_.wave.rows).forward;
    EXPECT_LT(WaveKeptBytes(stage, drawn_.wave), WaveBytes(stage, drawn_.wave).peak());
  }
  EXPECT_EQ(kept, WaveKeptBytes(drawn_.whole, drawn_.wave) + others * drawn_.wave.rows * kIndexBytes);
}

// A stage before the last runs the layers that a whole model has below its last one, and not the head.
TEST_P(StageBytesTest, AnEarlierStagePeaksWhereTheLayersOfAWholeModelDo) {
  for (const ByteShape& stage : drawn_.stages) {
    if (stage.last_stage) continue;
    WaveShape wave = drawn_.wave;
    const PhaseBytes bytes = WaveBytes(stage, wave);
    ByteShape other = stage;
    other.config.vocab_size *= 7;
    EXPECT_EQ(WaveBytes(other, wave), bytes) << "no head here";
    EXPECT_EQ(ForwardWaveBytes(other, wave), ForwardWaveBytes(stage, wave));
    wave.kv_only_rows = 0;
    wave.runs = {{.rows = wave.rows, .longest_rows = wave.rows}};
    WaveShape apart = drawn_.wave;
    apart.runs = wave.runs;
    EXPECT_EQ(WaveBytes(stage, wave), WaveBytes(stage, apart)) << "no rows are set apart here";
    // With a head of one token and a wide FFN, the last layer's backward is the highest moment of a model of these
    // layers; beside it are the head's results and the statistic of its norm, of each row.
    ByteShape wide = stage;
    wide.config.ffn_size *= 64;
    ByteShape model = wide;
    model.first_stage = model.last_stage = true;
    model.config.vocab_size = 1;
    model.head_chunk_rows = 1;
    const int64_t head = wave.rows * 16 + (wave.rows + model.tp - 1) / model.tp * model.accumulate_bytes;
    EXPECT_EQ(WaveBytes(model, wave).peak() - head, WaveBytes(wide, wave).peak());
  }
}

// Phases A and C of a model with one layer more, of which only K and V are wanted, have those of these layers among
// their moments.
TEST_P(StageBytesTest, AnEarlierStageNeedsNoMoreThanAModelThatGoesOn) {
  PrefixShape prefix = drawn_.prefix;
  if (prefix.policy == v1::S5) prefix.policy = v1::S4;
  ByteShape model = drawn_.stages.front();
  const int64_t rows = PrefixRowsBytes();
  ++model.config.num_layers;
  model.last_stage = true;
  EXPECT_LE(PrefixForwardBytes(drawn_.stages.front(), prefix).peak(), PrefixForwardBytes(model, prefix).peak() + rows);
  EXPECT_LE(PrefixBackwardBytes(drawn_.stages.front(), prefix).peak(), PrefixBackwardBytes(model, prefix).peak());
  EXPECT_GE(PrefixForwardBytes(drawn_.stages.front(), prefix).peak(),
            PrefixKeptBytes(drawn_.stages.front(), prefix).peak());
}

// The same layers on another place: later stages keep the blocks' inputs for the second run of S5.
TEST_P(StageBytesTest, InputsAreKeptWhereTheyCannotBeLookedUpAgain) {
  ByteShape later = drawn_.stages.front();
  later.first_stage = false;
  for (const v1::TapePolicy policy : {v1::S4, v1::S5}) {
    PrefixShape prefix = drawn_.prefix;
    prefix.policy = policy;
    const int64_t more =
        PrefixKeptBytes(later, prefix).dormant_set - PrefixKeptBytes(drawn_.stages.front(), prefix).dormant_set;
    EXPECT_EQ(more, policy == v1::S5 ? PrefixRowsBytes() : 0);
  }
  EXPECT_LE(ForwardPrefixBytes(later, drawn_.prefix).peak(),
            ForwardPrefixBytes(drawn_.stages.front(), drawn_.prefix).peak())
      << "nothing runs again";
}

TEST_P(StageBytesTest, StagesHoldEachParameterOnceAndATiedEmbeddingTwice) {
  v1::Mesh mesh = drawn_.run.mesh();
  mesh.set_tp(1);
  int64_t parameters = 0, largest = 0;
  for (const ModelShard& shard : StageShards(drawn_.model, mesh)) {
    parameters += NumParameters(shard);
    largest = std::max(largest, NumParameters(shard));
  }
  const int64_t embedding = drawn_.model.vocab_size * drawn_.model.hidden_size;
  EXPECT_EQ(parameters, drawn_.model.num_parameters() + (drawn_.model.tie_word_embeddings ? embedding : 0));
  // The first and the last stage add up a tied embedding's gradient, a piece at a time.
  for (const ModelShard& shard : StageShards(drawn_.model, mesh)) {
    const bool shares = drawn_.model.tie_word_embeddings && (shard.is_first() || shard.is_last());
    EXPECT_EQ(StageGradientElements(shard), shares ? std::min<int64_t>(embedding, 1 << 20) : 0);
    EXPECT_EQ(PartialGradientsSent(shard, 4).stages, shares ? 4 * embedding : 0);
  }
  const StateBytes state = StateBytesOf(drawn_.model, RunDtype::kFp32, mesh);
  EXPECT_EQ(state.weights, largest * 4);
  EXPECT_EQ(state.gradients, largest * 4);
  EXPECT_GE(state.optimizer * DataRanks(mesh), largest * 8);
}

// Every row goes once over every border and its gradient back, by whichever of the ranks has it.
TEST_P(StageBytesTest, RowsTravelOnceEachWay) {
  const int64_t row_bytes = drawn_.model.hidden_size * drawn_.whole.run_bytes;
  PipelineSentBytes waves, prefixes;
  for (const ByteShape& stage : drawn_.stages) {
    waves += WavePipelineSent(stage, drawn_.wave.rows);
    for (int64_t rank = 0; rank < stage.cp; ++rank) prefixes += PrefixPipelineSent(stage, drawn_.prefix, rank);
  }
  const int64_t borders = static_cast<int64_t>(drawn_.stages.size()) - 1;
  EXPECT_EQ(waves.forward, waves.backward);
  EXPECT_EQ(prefixes.forward, prefixes.backward);
  EXPECT_EQ(waves.forward_messages, borders);
  EXPECT_EQ(waves.backward_messages, borders);
  // Tensor-parallel ranks have equal parts, the last one padded: in each block of each context-parallel rank.
  const int64_t blocks = prefixes.forward_messages / borders / drawn_.whole.cp;
  const int64_t tp = drawn_.whole.tp, padding = borders * (tp - 1) * row_bytes;
  EXPECT_GE(tp * waves.forward, borders * drawn_.wave.rows * row_bytes);
  EXPECT_LE(tp * waves.forward, borders * drawn_.wave.rows * row_bytes + padding);
  EXPECT_GE(tp * prefixes.forward, borders * drawn_.prefix.rows * row_bytes);
  EXPECT_LE(tp * prefixes.forward, borders * drawn_.prefix.rows * row_bytes + blocks * drawn_.whole.cp * padding);
  const int64_t block = drawn_.prefix.block_rows > 0 ? drawn_.prefix.block_rows : drawn_.prefix.rows;
  EXPECT_EQ(blocks, (drawn_.prefix.rows + block - 1) / block);
}

INSTANTIATE_TEST_SUITE_P(DrawnStages, StageBytesTest, ::testing::Range(0U, kCases));

}  // namespace
}  // namespace stemma::testing
