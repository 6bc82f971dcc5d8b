// What context-parallel ranks send and hold, by a walk over what they do that knows nothing of the formulas.
#include "common/cost/context_parallel_cost.h"

#include <algorithm>
#include <random>
#include <vector>

#include "common/base/mesh.h"
#include "common/base/round_up.h"
#include "common/cost/context_rows.h"
#include "common/cost/context_share.h"
#include "common/cost/rank_shape.h"
#include "common/cost/regather_bytes.h"
#include "common/cost/state_bytes.h"
#include "common/cost/state_shards.h"
#include "common/cost/tensor_parallel_cost.h"
#include "gtest/gtest.h"

namespace stemma {
namespace {

ModelConfig Model() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 512;
  config.hidden_size = 64;
  config.num_layers = 3;
  config.num_heads = 8;
  config.num_kv_heads = 4;
  config.head_size = 8;
  config.ffn_size = 160;
  config.max_positions = 4096;
  return config;
}

struct DrawnPrefixes {
  ByteShape shape;
  PrefixShape prefix;
};

DrawnPrefixes DrawPrefixes(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  v1::RunConfig run;
  run.set_dtype(between(0, 1) == 0 ? "fp32" : "bf16");
  run.set_head_chunk_tokens(64);
  *run.mutable_mesh() = MakeMesh({.cp = static_cast<uint32_t>(between(1, 5)), .tp = between(0, 1) == 0 ? 1u : 2u});
  DrawnPrefixes drawn = {.shape = RankShape(Model(), run), .prefix = {}};
  PrefixShape& prefix = drawn.prefix;
  for (int64_t i = between(1, 4); i > 0; --i) prefix.lengths.push_back(between(1, 300));
  for (const int64_t length : prefix.lengths) prefix.rows += length;
  prefix.block_rows = between(0, 1) * between(1, 200);
  prefix.policy = static_cast<v1::TapePolicy>(between(v1::S0, v1::S5));
  prefix.regather = between(0, 1) == 1;
  return drawn;
}

// What each rank has of each block.
std::vector<std::vector<int64_t>> RowsOfBlocks(const DrawnPrefixes& drawn) {
  const PrefixShape& prefix = drawn.prefix;
  const int64_t cp = drawn.shape.cp, step = prefix.block_rows == 0 ? prefix.rows : prefix.block_rows;
  std::vector<std::vector<int64_t>> blocks(static_cast<size_t>(DivideUp(prefix.rows, step)),
                                           std::vector<int64_t>(static_cast<size_t>(cp)));
  for (const ContextPiece& piece : DealContextRows(prefix.lengths, prefix.block_rows, cp)) {
    for (int64_t row = piece.begin; row < piece.end; ++row) {
      ++blocks[static_cast<size_t>(row / step)][static_cast<size_t>(piece.rank)];
    }
  }
  return blocks;
}

int64_t Most(const std::vector<int64_t>& rows) { return *std::max_element(rows.begin(), rows.end()); }

int64_t MostOfAll(const std::vector<std::vector<int64_t>>& blocks) {
  std::vector<int64_t> sums(blocks[0].size());
  for (const std::vector<int64_t>& block : blocks) {
    for (size_t rank = 0; rank < sums.size(); ++rank) sums[rank] += block[rank];
  }
  return Most(sums);
}

// Collectives as the ranks come to them: each sends its padded part to all others.
class Walk {
 public:
  explicit Walk(const ByteShape& shape) : s_(shape) {}
  void Gather(int64_t part) { Send(part, s_.run_bytes, sent.prefix_kv); }
  void Reduce(int64_t part) { Send(part, s_.accumulate_bytes, sent.prefix_gradients); }
  ContextSentBytes sent;

 private:
  void Send(int64_t part, int64_t bytes, int64_t& sum) {
    if (s_.cp == 1) return;
    for (int64_t other = 1; other < s_.cp; ++other) {
      sum += part * 2 * s_.config.num_kv_heads * s_.config.head_size * bytes;
    }
    ++sent.collectives;
  }
  const ByteShape& s_;
};

TEST(ContextParallelCostTest, SentBytesAreThoseOfAWalkOverTheCollectives) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const DrawnPrefixes drawn = DrawPrefixes(seed);
    const PrefixShape& prefix = drawn.prefix;
    const std::vector<std::vector<int64_t>> blocks = RowsOfBlocks(drawn);
    const int64_t all = MostOfAll(blocks);
    Walk forward(drawn.shape), backward(drawn.shape), round_forward(drawn.shape), round_backward(drawn.shape);
    for (const std::vector<int64_t>& block : blocks) {
      const int64_t part = prefix.regather ? all : Most(block);
      for (int64_t layer = 0; layer < drawn.shape.config.num_layers; ++layer) {
        if (prefix.regather && layer + 1 == drawn.shape.config.num_layers) continue;  // its rows attend to nothing
        forward.Gather(part);
        if (prefix.regather) backward.Gather(part);
        if (prefix.regather && prefix.policy == v1::S5) backward.Gather(part);
        backward.Reduce(part);
      }
    }
    for (int64_t layer = 0; prefix.regather && layer < drawn.shape.config.num_layers; ++layer) {
      round_forward.Gather(all);
      round_backward.Gather(all);
      round_backward.Reduce(all);
    }
    EXPECT_EQ(PrefixForwardContextSent(drawn.shape, prefix), forward.sent);
    EXPECT_EQ(PrefixBackwardContextSent(drawn.shape, prefix), backward.sent);
    EXPECT_EQ(RoundForwardContextSent(drawn.shape, prefix), round_forward.sent);
    EXPECT_EQ(RoundBackwardContextSent(drawn.shape, prefix), round_backward.sent);
  }
}

TEST(ContextParallelCostTest, RowsOfARankAreRoundedBlockByBlock) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const DrawnPrefixes drawn = DrawPrefixes(seed);
    const std::vector<std::vector<int64_t>> blocks = RowsOfBlocks(drawn);
    EXPECT_EQ(NumBlocks(drawn.prefix), static_cast<int64_t>(blocks.size()));
    ContextRows most;
    for (int64_t rank = 0; rank < drawn.shape.cp; ++rank) {
      ContextRows expected;
      for (const std::vector<int64_t>& block : blocks) {
        const int64_t rows = block[static_cast<size_t>(rank)];
        expected.rows += rows;
        expected.row_parts += DivideUp(rows, drawn.shape.tp);
      }
      const ContextRows own = RowsOfRank(drawn.shape, drawn.prefix, rank);
      EXPECT_EQ(own.rows, expected.rows);
      EXPECT_EQ(own.row_parts, expected.row_parts);
      most.rows = std::max(most.rows, own.rows);
      most.row_parts = std::max(most.row_parts, own.row_parts);
    }
    const ContextRows largest = RowsOfRank(drawn.shape, drawn.prefix);
    EXPECT_EQ(largest.rows, most.rows);
    EXPECT_EQ(largest.row_parts, most.row_parts);
    EXPECT_EQ(RowsOfRank(drawn.shape, {}).rows, 0);
    EXPECT_EQ(NumBlocks({}), 0);
    EXPECT_EQ(BlockRows({.rows = 5, .block_rows = 8}), 5) << "no block has rows that are not there";
  }
}

// Attention of a block holds what its longest pieces need, and the blocks before it what the fullest rank kept.
TEST(ContextParallelCostTest, ABlockHasTheLongestPiecesAndWhatTheFullestRankHadBefore) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const DrawnPrefixes drawn = DrawPrefixes(seed);
    const ContextShare share(drawn.shape, drawn.prefix);
    std::vector<ContextRows> kept(static_cast<size_t>(drawn.shape.cp));
    for (size_t b = 0; b < share.blocks().size(); ++b) {
      const ContextBlock& block = share.blocks()[b];
      ContextRows most;
      for (int64_t rank = 0; rank < drawn.shape.cp; ++rank) {
        ContextRows& own = kept[static_cast<size_t>(rank)];
        most.rows = std::max(most.rows, own.rows);
        most.row_parts = std::max(most.row_parts, own.row_parts);
        own.rows += share.RowsOf(b, rank);
        own.row_parts += DivideUp(share.RowsOf(b, rank), drawn.shape.tp);
      }
      EXPECT_EQ(block.before.rows, most.rows);
      EXPECT_EQ(block.before.row_parts, most.row_parts);
      for (const ContextPiece& piece : share.pieces()) {
        if (piece.begin < block.begin || piece.begin >= block.begin + block.rows) continue;
        EXPECT_TRUE(std::any_of(block.runs.begin(), block.runs.end(),
                                [&](const LayerRun& run) {
                                  return run.rows >= piece.rows() &&
                                         run.ancestor_rows >= piece.begin - piece.prefix_begin;
                                }))
            << "no run is as long as that from " << piece.begin;
      }
    }
  }
}

// Over tp each context-parallel rank exchanges its own rows, rounded block by block.
TEST(ContextParallelCostTest, TensorParallelRanksExchangeOwnRows) {
  int compared = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const DrawnPrefixes drawn = DrawPrefixes(seed);
    if (drawn.shape.tp == 1 || drawn.shape.cp == 1) continue;
    ByteShape alone = drawn.shape;
    alone.cp = 1;
    const std::vector<std::vector<int64_t>> blocks = RowsOfBlocks(drawn);
    int64_t most = 0;
    for (int64_t rank = 0; rank < drawn.shape.cp; ++rank) {
      TensorSentBytes expected;
      for (const std::vector<int64_t>& block : blocks) {
        // A block without rows still has its collectives.
        TensorSentBytes sent =
            PrefixForwardTensorSent(alone, {.rows = std::max<int64_t>(1, block[static_cast<size_t>(rank)])});
        if (block[static_cast<size_t>(rank)] == 0) sent.rows = sent.row_sums = 0;
        expected += sent;
      }
      const TensorSentBytes sent = PrefixForwardTensorSent(drawn.shape, drawn.prefix, rank);
      EXPECT_EQ(sent.rows, expected.rows);
      EXPECT_EQ(sent.row_sums, expected.row_sums);
      EXPECT_EQ(sent.row_collectives, expected.row_collectives);
      most = std::max(most, sent.total());
      ++compared;
    }
    EXPECT_EQ(PrefixForwardTensorSent(drawn.shape, drawn.prefix).total(), most);
  }
  EXPECT_GT(compared, 100);
}

TEST(ContextParallelCostTest, HeldIsWhatOneRankHoldsAndRegatheredIsARanksPart) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const DrawnPrefixes drawn = DrawPrefixes(seed);
    const int64_t own = MostOfAll(RowsOfBlocks(drawn)), rows = drawn.prefix.rows;
    const int64_t row = 2 * drawn.shape.config.kv_size() * (drawn.shape.run_bytes + drawn.shape.accumulate_bytes);
    // Token and position of own rows; where others have some, an own row's place, and all rows' places both ways.
    const int64_t index = own * 2 * 8 + (drawn.shape.cp > 1 ? own * 8 + rows * 2 * 8 : 0);
    const int64_t held = drawn.prefix.regather ? own : rows;
    EXPECT_EQ(PrefixKeptBytes(drawn.shape, drawn.prefix).hot_set, drawn.shape.config.num_layers * held * row + index);
  }
}

// The tape is that of so many rows on one rank.
TEST(ContextParallelCostTest, TheTapeIsOfOwnRows) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    DrawnPrefixes drawn = DrawPrefixes(seed);
    drawn.prefix.block_rows = 0;
    ByteShape alone = drawn.shape;
    alone.cp = 1;
    PrefixShape own = {.rows = MostOfAll(RowsOfBlocks(drawn)), .policy = drawn.prefix.policy};
    EXPECT_EQ(PrefixKeptBytes(drawn.shape, drawn.prefix).dormant_set, PrefixKeptBytes(alone, own).dormant_set);
    own.offload = drawn.prefix.offload = true;
    EXPECT_EQ(HostTapeBytes(drawn.shape, drawn.prefix), HostTapeBytes(alone, own));
  }
}

// The whole prefix of one layer at least comes and goes beside the layer at work, and each phase has what it keeps.
TEST(ContextParallelCostTest, PhasesHaveWhatTravels) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const DrawnPrefixes drawn = DrawPrefixes(seed);
    if (drawn.shape.cp == 1) continue;
    const int64_t kv = 2 * drawn.shape.config.kv_size() * drawn.shape.run_bytes;
    const int64_t gradient = 2 * drawn.shape.config.kv_size() * drawn.shape.accumulate_bytes;
    const std::vector<std::vector<int64_t>> blocks = RowsOfBlocks(drawn);
    const int64_t cp = drawn.shape.cp, rows = drawn.prefix.rows, all = MostOfAll(blocks);
    const PhaseBytes kept = PrefixKeptBytes(drawn.shape, drawn.prefix);
    EXPECT_GE(PrefixForwardBytes(drawn.shape, drawn.prefix).peak(), kept.peak());
    const PhaseBytes backward = PrefixBackwardBytes(drawn.shape, drawn.prefix);
    const BesideLayer beside = RegatherBytes(drawn.shape, drawn.prefix);
    if (drawn.prefix.regather) {
      const int64_t layers = drawn.shape.config.num_layers, coming = 2 * cp * all * kv;
      EXPECT_EQ(beside.forward, rows * kv + coming);
      EXPECT_EQ(beside.forward_last, rows * kv);
      EXPECT_EQ(beside.backward, rows * (kv + gradient) + (layers > 2 ? coming : 0) + (2 * cp + 1) * all * gradient);
      EXPECT_EQ(beside.backward_last, rows * (kv + gradient) + (layers > 1 ? coming : 0));
      EXPECT_EQ(beside.gradients, rows * gradient);
      EXPECT_GE(backward.working_set, layers > 1 ? rows * (kv + gradient) : 0);
    } else {
      EXPECT_EQ(beside, BesideLayer{});
      // The last block's reduction, while all layers' K/V and accumulators are there.
      EXPECT_GE(backward.peak(), kept.hot_set + (2 * cp + 1) * Most(blocks.back()) * gradient);
    }
  }
}

TEST(ContextParallelCostTest, AWaveHasWhatIsBesideItsLayers) {
  // A number that is so much larger than the wave decides which moment is the highest.
  constexpr int64_t kMuch = int64_t{1} << 30;
  const ByteShape shape = DrawPrefixes(3).shape;
  for (const int64_t kv_only_rows : {0, 30}) {
    const WaveShape wave = {.rows = 100, .kv_only_rows = kv_only_rows, .policy = v1::S0};
    const auto peak = [&](const BesideLayer& beside) { return WaveBytes(shape, wave, beside).peak(); };
    const auto forward_peak = [&](const BesideLayer& beside) { return ForwardWaveBytes(shape, wave, beside); };
    for (int64_t BesideLayer::*moment :
         {&BesideLayer::forward, &BesideLayer::backward, &BesideLayer::forward_last, &BesideLayer::backward_last}) {
      BesideLayer much, more;
      much.*moment = kMuch;
      more.*moment = kMuch + 5;
      EXPECT_EQ(peak(more) - peak(much), 5);
      const bool in_forward = moment == &BesideLayer::forward || moment == &BesideLayer::forward_last;
      EXPECT_EQ(forward_peak(more) - forward_peak(much), in_forward ? 5 : 0);
    }
    EXPECT_EQ(peak({}), WaveBytes(shape, wave).peak());
    EXPECT_EQ(forward_peak({.backward = kMuch, .backward_last = kMuch}), ForwardWaveBytes(shape, wave));
  }
}

// Trajectories in full add nothing to gK/gV: their waves have none of all rows, and whoever attends has.
TEST(ContextParallelCostTest, AWaveThatAttendsToNoPrefixMakesNoGradientsOfIt) {
  constexpr int64_t kMuch = int64_t{1} << 30, kGradients = 1000;
  const ByteShape shape = DrawPrefixes(3).shape;
  const BesideLayer all = {.backward = kMuch, .backward_last = kMuch};
  BesideLayer with_gradients = all;
  with_gradients.gradients = kGradients;
  const auto not_made = [&](const decltype(WaveShape::runs)& runs) {
    const WaveShape wave = {.rows = 100, .runs = runs, .policy = v1::S0};
    return WaveBytes(shape, wave, all).peak() - WaveBytes(shape, wave, with_gradients).peak();
  };
  EXPECT_EQ(not_made({{100, 50, 0, 0}}), kGradients);
  EXPECT_EQ(not_made({{100, 50, 40, 0}}), 0);
  EXPECT_EQ(not_made({{50, 50, 0, 0}, {50, 50, 40, 0}}), 0);
}

TEST(ContextParallelCostTest, OneRankIsAsWithoutContextParallelism) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    DrawnPrefixes drawn = DrawPrefixes(seed);
    drawn.shape.cp = 1;
    drawn.prefix.regather = false;
    PrefixShape regathered = drawn.prefix;
    regathered.regather = true;
    EXPECT_EQ(PrefixForwardBytes(drawn.shape, drawn.prefix).peak(), PrefixForwardBytes(drawn.shape, regathered).peak());
    EXPECT_EQ(PrefixBackwardBytes(drawn.shape, drawn.prefix).peak(),
              PrefixBackwardBytes(drawn.shape, regathered).peak());
    EXPECT_EQ(PrefixForwardContextSent(drawn.shape, regathered), ContextSentBytes{});
    EXPECT_EQ(RoundBackwardContextSent(drawn.shape, regathered), ContextSentBytes{});
    EXPECT_EQ(RegatherBytes(drawn.shape, regathered), BesideLayer{});
  }
}

// Ranks of dp and of cp hold the same, and share its states alike.
TEST(ContextParallelCostTest, StatesAreDividedOverDpAndCp) {
  const auto of = [](const MeshSizes& sizes) { return StateBytesOf(Model(), RunDtype::kBf16, MakeMesh(sizes)); };
  for (const uint32_t tp : {1u, 2u}) {
    const StateBytes both = of({.dp = 2, .cp = 3, .tp = tp}), dp = of({.dp = 6, .tp = tp}),
                     cp = of({.cp = 6, .tp = tp});
    for (const StateBytes& other : {dp, cp}) {
      EXPECT_EQ(both.optimizer, other.optimizer);
      EXPECT_EQ(both.exchange, other.exchange);
      EXPECT_EQ(both.total(), other.total());
    }
    EXPECT_LT(both.optimizer, of({.tp = tp}).optimizer / 5);
    EXPECT_EQ(both.weights, of({.tp = tp}).weights);
  }
}

}  // namespace
}  // namespace stemma
