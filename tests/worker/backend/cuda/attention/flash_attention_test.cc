// FlashAttention over a fake of FA2's calls in fp64 against attention on whole scores, which shares no algebra with it.
#include "worker/backend/cuda/attention/flash_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/testing/tensors.h"
#include "tests/worker/backend/cuda/attention/fake_flash_calls.h"
#include "tests/worker/backend/cuda/attention/wave_cases.h"
#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cuda/attention/bucketed_calls.h"
#include "worker/backend/cuda/attention/composed_attention_kernels.h"

namespace stemma::testing {
namespace {

using worker::cuda::AdmittedShapes;
using worker::cuda::BucketedCalls;
using worker::cuda::ComposedAttentionKernels;
using worker::cuda::FlashAttention;
using worker::cuda::FlashAttentionOptions;
using worker::cuda::PrefixCall;

template <int64_t kChunks>
int64_t Chunks(const PrefixCall&, int64_t) {
  return kChunks;
}

FlashAttentionOptions Options(int64_t (*chunks)(const PrefixCall&, int64_t) = Chunks<1>) {
  return {.kernels = ComposedAttentionKernels(), .num_multiprocessors = 132, .chunks = chunks};
}

double ErrorOf(const WaveCase& c, const AttentionOp& attention) {
  return WorstError(RunWave(MakeWave(c), attention), RunWave(MakeWave(c), *MakeComposedAttention()));
}

double ErrorOf(const WaveCase& c, FlashAttentionOptions options = Options()) {
  const FakeFlashCalls calls;
  return ErrorOf(c, FlashAttention(calls, std::move(options)));
}

TEST(FlashAttentionTest, AgreesWithWholeScoresOnDrawnWaves) {
  for (uint32_t seed = FirstSeed(); seed < FirstSeed() + 150; ++seed) {
    Draw draw(seed);
    WaveCase c = DrawWave(draw);
    c.seed = seed;
    const auto chunks = draw.Of<int64_t (*)(const PrefixCall&, int64_t)>({Chunks<1>, Chunks<2>, Chunks<5>});
    EXPECT_LT(ErrorOf(c, Options(chunks)), kExact) << Describe(c);
  }
}

// Prefix lengths that are no multiple of any block, times rows that no count of chunks divides.
TEST(FlashAttentionTest, AgreesForEveryCountOfChunks) {
  for (const int64_t prefix : {1, 15, 64, 129}) {
    for (const int64_t rows : {1, 3, 7, 31, 60}) {
      const WaveCase c{.ancestor_rows = {prefix}, .spans = {{rows, 0}, {rows + 2, 0}}};
      for (const auto& chunks : {Chunks<1>, Chunks<2>, Chunks<3>, Chunks<4>, Chunks<5>, Chunks<1000>}) {
        EXPECT_LT(ErrorOf(c, Options(chunks)), kExact) << Describe(c);
      }
    }
  }
}

TEST(FlashAttentionTest, AgreesOverHeadShapes) {
  for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{4, 4}, {4, 2}, {8, 2}, {8, 1}, {12, 2}}) {
    for (const int64_t head_size : {8, 64, 80, 128}) {
      const WaveCase c{.num_heads = heads,
                       .num_kv_heads = kv_heads,
                       .head_size = head_size,
                       .ancestor_rows = {37},
                       .spans = {{9, 0}, {5, 0}, {1, 0}}};
      EXPECT_LT(ErrorOf(c, Options(Chunks<2>)), kExact) << Describe(c);
    }
  }
}

TEST(FlashAttentionTest, AgreesOnWavesAtTheEdge) {
  for (const bool neighbours : {true, false}) {
    for (WaveCase c : {
             WaveCase{.ancestor_rows = {}, .spans = {{7, -1}}},
             WaveCase{.ancestor_rows = {}, .spans = {{1, -1}}},
             WaveCase{.ancestor_rows = {}, .spans = {{3, -1}, {17, -1}, {0, -1}, {4, -1}}},
             WaveCase{.ancestor_rows = {5}, .spans = {{1, 0}, {1, 0}, {1, 0}, {1, 0}}},
             WaveCase{.ancestor_rows = {5, 6}, .spans = {{1, 0}, {0, 0}, {1, 1}, {1, 1}}},
             WaveCase{.ancestor_rows = {3, 9}, .spans = {{3, -1}, {17, 1}, {2, -1}, {4, 0}, {5, 1}}},
             WaveCase{.ancestor_rows = {16, 16, 16},
             .spans = {{8, -1}, {8, -1}, {0, 0}, {0, 0}, {0, 1}, {1, 1}, {1, 2}, {0, 2}}},
             WaveCase{.ancestor_rows = {0}, .spans = {{4, 0}, {2, 0}}},
             WaveCase{.ancestor_rows = {4, 0, 3}, .spans = {{4, 0}, {2, 1}, {5, 2}}},
             WaveCase{.ancestor_rows = {4, 0, 3}, .spans = {{4, 0}, {5, 2}}},
             WaveCase{.ancestor_rows = {9}, .spans = {{0, 0}}},
         }) {
      c.neighbours = neighbours;
      EXPECT_LT(ErrorOf(c), kExact) << Describe(c);
    }
  }
}

// One part's weight vanishes: the merge must make neither NaN nor noise.
TEST(FlashAttentionTest, MergesPartsOfVeryDifferentWeight) {
  for (const double factor : {-60.0, 60.0}) {
    const WaveCase c{.ancestor_rows = {20}, .spans = {{9, 0}, {5, 0}}};
    const auto run = [&](const AttentionOp& attention) {
      const WaveInputs in = MakeWave(c);
      in.q_HTE.abs_();
      in.batch.ancestors[0].k_CKE.abs_().mul_(factor);
      in.k_TKE.abs_().mul_(-factor);
      return RunWave(in, attention);
    };
    const FakeFlashCalls calls;
    // Scores of some thousand: three digits fewer.
    EXPECT_LT(WorstError(run(FlashAttention(calls, Options())), run(*MakeComposedAttention())), 1e-11);
  }
}

TEST(FlashAttentionTest, SavesWhatTheNextLinearAndTheBackwardReadAsTheyNeedIt) {
  const FakeFlashCalls calls;
  const FlashAttention attention(calls, Options());
  for (const bool by_token : {true, false}) {
    for (const int64_t ancestor : {-1, 0}) {
      WaveCase c{.ancestor_rows = {6}, .spans = {{4, ancestor}, {3, ancestor}}};
      c.queries_by_token = by_token;
      const WaveInputs in = MakeWave(c);
      const AttentionSaved saved = attention.Forward(in.batch, in.q_HTE, in.k_TKE, in.v_TKE);
      EXPECT_TRUE(saved.o_TD.is_contiguous() && saved.lse_HT.is_contiguous());
      EXPECT_EQ(saved.o_TD.sizes(), (at::IntArrayRef{7, 32}));
      EXPECT_EQ(saved.lse_HT.sizes(), (at::IntArrayRef{4, 7}));
      EXPECT_TRUE(saved.q_HTE.is_alias_of(in.q_HTE) && saved.k_TKE.is_alias_of(in.k_TKE));
    }
  }
}

TEST(FlashAttentionTest, ReadsQueriesWhereTheyLie) {
  const FakeFlashCalls calls;
  const WaveInputs in = MakeWave({.ancestor_rows = {6}, .spans = {{4, 0}, {3, 0}}});
  RunWave(in, FlashAttention(calls, Options()));
  ASSERT_EQ(calls.asked().size(), 4);
  for (const AskedCall& call : calls.asked()) EXPECT_EQ(call.queries, in.q_HTE.const_data_ptr());
}

TEST(FlashAttentionTest, CallsDoNotGrowWithTheSuffixes) {
  for (const int64_t suffixes : {1, 2, 16, 64}) {
    WaveCase c{.ancestor_rows = {11}};
    for (int64_t i = 0; i < suffixes; ++i) c.spans.push_back({3 + i % 4, 0});
    const FakeFlashCalls whole;
    RunWave(MakeWave(c), FlashAttention(whole, Options()));
    EXPECT_EQ(whole.Count(/*forward=*/true), 2);
    EXPECT_EQ(whole.Count(/*forward=*/false), 2);
    // Rows that chunks leave over are one call more.
    const FakeFlashCalls chunked;
    RunWave(MakeWave(c), FlashAttention(chunked, Options(Chunks<2>)));
    EXPECT_EQ(chunked.Count(/*forward=*/true), 2);
    EXPECT_EQ(chunked.Count(/*forward=*/false), c.rows() % 2 == 0 ? 2 : 3);
  }
}

TEST(FlashAttentionTest, AWaveWithoutAncestorsIsOneCall) {
  const FakeFlashCalls calls;
  RunWave(MakeWave({.spans = {{5, -1}}}), FlashAttention(calls, Options()));
  ASSERT_EQ(calls.asked().size(), 2);
  EXPECT_FALSE(calls.asked()[0].packed);
  EXPECT_TRUE(calls.asked()[0].causal);
}

int64_t num_add_parts = 0;
void CountedAddParts(const worker::cuda::AddPartsOperands& args) {
  ++num_add_parts;
  ComposedAttentionKernels().add_parts(args);
}

TEST(FlashAttentionTest, NeighbouringAncestorsAreOneCallAndOneSum) {
  WaveCase c{.ancestor_rows = {6, 3, 9, 4}, .spans = {{4, 0}, {3, 0}, {5, 1}, {2, 2}, {2, 2}, {1, 3}}};
  FlashAttentionOptions options = Options();
  options.kernels.add_parts = CountedAddParts;
  for (const auto& [neighbours, neighbour_gradients, calls_each_way, sums] :
       {std::tuple{true, true, 2, 2}, {true, false, 2, 8}, {false, true, 5, 8}, {false, false, 5, 8}}) {
    c.neighbours = neighbours;
    c.neighbour_gradients = neighbour_gradients;
    const FakeFlashCalls calls;
    num_add_parts = 0;
    EXPECT_LT(ErrorOf(c, FlashAttention(calls, options)), kExact) << Describe(c);
    EXPECT_EQ(calls.Count(/*forward=*/true), calls_each_way) << Describe(c);
    EXPECT_EQ(calls.Count(/*forward=*/false), calls_each_way) << Describe(c);
    EXPECT_EQ(num_add_parts, sums) << Describe(c);
  }
}

TEST(FlashAttentionTest, AForwardNeedsNoAccumulators) {
  WaveInputs in = MakeWave({.ancestor_rows = {6, 3}, .spans = {{4, 0}, {3, 1}}});
  const FakeFlashCalls calls;
  const FlashAttention attention(calls, Options());
  const at::Tensor expected = attention.Forward(in.batch, in.q_HTE, in.k_TKE, in.v_TKE).o_TD;
  for (AncestorKv& ancestor : in.batch.ancestors) ancestor.gk_CKE = ancestor.gv_CKE = at::Tensor();
  EXPECT_TRUE(attention.Forward(in.batch, in.q_HTE, in.k_TKE, in.v_TKE).o_TD.equal(expected));
}

// An ancestor's gradients do not depend on how its suffixes are cut into waves.
TEST(FlashAttentionTest, WavesAddUp) {
  const WaveCase whole{.ancestor_rows = {13}, .spans = {{5, 0}, {1, 0}, {9, 0}, {4, 0}}};
  const FakeFlashCalls calls;
  const FlashAttention attention(calls, Options());
  const WaveResult expected = RunWave(MakeWave(whole), attention);
  for (const int64_t first : {5, 6, 15}) {
    const WaveInputs in = MakeWave(whole);
    WaveInputs wave = in;
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, first}, {first, whole.rows()}}) {
      wave.q_HTE = in.q_HTE.slice(1, begin, end);
      wave.k_TKE = in.k_TKE.slice(0, begin, end);
      wave.v_TKE = in.v_TKE.slice(0, begin, end);
      wave.do_TD = in.do_TD.slice(0, begin, end);
      wave.batch.spans.clear();
      for (const AttentionSpan& span : in.batch.spans) {
        if (span.begin >= begin && span.end <= end)
          wave.batch.spans.push_back({span.begin - begin, span.end - begin, 0});
      }
      RunWave(wave, attention);
    }
    EXPECT_LT(RelativeError(in.batch.ancestors[0].gk_CKE, expected.gk[0]), kExact);
    EXPECT_LT(RelativeError(in.batch.ancestors[0].gv_CKE, expected.gv[0]), kExact);
  }
}

TEST(FlashAttentionTest, WhatTheLibraryHasNoKernelForRunsOnWholeScores) {
  const FakeFlashCalls calls;
  const FlashAttention attention(calls, Options());
  const WaveCase c{.head_size = 12, .ancestor_rows = {6}, .spans = {{4, 0}, {3, -1}}};
  EXPECT_EQ(ErrorOf(c, attention), 0);
  EXPECT_TRUE(calls.asked().empty());
}

// The faster library takes single spans, spans of one length and single ancestors; the rest stays packed.
TEST(FlashAttentionTest, AdmittedShapesGoToTheDenseLibraryInBuckets) {
  const FakeFlashCalls packed, dense;
  const BucketedCalls bucketed(dense);
  FlashAttentionOptions options = Options();
  options.dense = &bucketed;
  for (const bool causal : {false, true}) {
    options.admitted.Admit({.family = {4, 2, 8, at::kDouble, causal},
                            .max_batch = 3,
                            .min_rows = 128,
                            .max_rows = 128,
                            .min_keys = 1,
                            .max_keys = 64});
  }
  const FlashAttention attention(packed, options);
  EXPECT_LT(ErrorOf({.ancestor_rows = {11, 7}, .spans = {{5, 0}, {5, 0}, {5, 1}}}, attention), kExact);
  EXPECT_TRUE(packed.asked().empty());
  EXPECT_EQ(dense.Count(/*forward=*/true), 3);
  for (const AskedCall& call : dense.asked()) EXPECT_EQ(call.rows / call.batch, 128);

  // Ragged spans, and a prefix that is longer than what was admitted.
  EXPECT_LT(ErrorOf({.ancestor_rows = {65}, .spans = {{5, 0}, {6, 0}}}, attention), kExact);
  EXPECT_EQ(packed.Count(/*forward=*/true), 2);
  EXPECT_EQ(packed.Count(/*forward=*/false), 2);
  EXPECT_EQ(dense.Count(/*forward=*/true), 3);
}

// Which of an ancestor's keys the dense library takes, by hand: calls of 1,280 at the most, then of as many multiples
// of 128 as are worth a call.
int64_t KeysInDense(int64_t keys) {
  int64_t taken = 0;
  while (keys - taken > 0) {
    const int64_t rest = keys - taken, first = std::min<int64_t>(rest, 1280) / 128 * 128;
    if (first < 1024 && first != rest) break;
    taken += first;
  }
  return taken;
}

// The dense library admits multiples of 128 keys: those behind them are another call, of the other library.
TEST(FlashAttentionTest, TheLastKeysOfALongAncestorAreACallOfTheOtherLibrary) {
  for (uint32_t seed = FirstSeed(); seed < FirstSeed() + 30; ++seed) {
    Draw draw(seed);
    const FakeFlashCalls packed, dense;
    const BucketedCalls bucketed(dense);
    FlashAttentionOptions options = Options(draw.Of<int64_t (*)(const PrefixCall&, int64_t)>({Chunks<1>, Chunks<3>}));
    options.dense = &bucketed;
    options.admitted.Admit({.family = {4, 2, 8, at::kDouble, /*causal=*/false},
                            .min_rows = 128,
                            .max_rows = 128,
                            .min_keys = 128,
                            .max_keys = 1280,
                            .keys_multiple = 128});
    const int64_t keys = draw.Chance(30) ? draw.Between(7, 32) * 128 : draw.Between(900, 4000);
    WaveCase c{.ancestor_rows = {keys, 40}, .spans = {{draw.Between(1, 9), 0}, {draw.Between(1, 9), 0}, {3, 1}}};
    c.neighbours = draw.Chance(50);
    c.seed = seed;
    EXPECT_LT(ErrorOf(c, FlashAttention(packed, options)), kExact) << "seed " << seed << ", " << Describe(c);
    int64_t dense_keys = 0, other_keys = 0;
    for (const AskedCall& call : dense.asked()) dense_keys += call.forward ? call.keys : 0;
    for (const AskedCall& call : packed.asked()) other_keys += call.forward && !call.causal ? call.keys : 0;
    EXPECT_EQ(dense_keys, KeysInDense(keys)) << "seed " << seed << ": " << keys;
    EXPECT_EQ(dense_keys + other_keys, keys + 40) << "seed " << seed;
  }
}

// The library takes as many of their keys, together, as the first ancestor has, whose calls have plans.
TEST(FlashAttentionTest, JoinedAncestorsAreTheOtherLibrarys) {
  const FakeFlashCalls packed, dense;
  const BucketedCalls bucketed(dense);
  FlashAttentionOptions options = Options();
  options.dense = &bucketed;
  options.admitted.Admit(
      {.family = {4, 2, 8, at::kDouble}, .min_rows = 128, .max_rows = 128, .max_keys = 1280, .keys_multiple = 128});
  const WaveCase c{.ancestor_rows = {1152, 600, 600}, .spans = {{5, 0}, {5, 1}, {6, 2}}, .neighbours = true};
  EXPECT_LT(ErrorOf(c, FlashAttention(packed, options)), kExact);
  EXPECT_EQ(dense.Count(/*forward=*/true), 1);
}

// Until its plans have paid, an ancestor is the other library's, and joined with its neighbours.
TEST(FlashAttentionTest, TheDenseLibraryTakesAncestorsOnceTheirPlansArePaidFor) {
  const FakeFlashCalls packed, dense;
  const BucketedCalls bucketed(dense);
  FlashAttentionOptions options = Options();
  options.dense = &bucketed;
  options.admitted.Admit({.family = {4, 2, 8, at::kDouble, /*causal=*/false},
                          .min_rows = 128,
                          .max_rows = 128,
                          .min_keys = 1,
                          .max_keys = 64});
  const WaveCase c{.ancestor_rows = {11}, .spans = {{5, 0}, {6, 0}}};
  options.flops_of_plans = 2.5 * 4 * 11 * 11 * 4 * 8;
  const FlashAttention attention(packed, options);
  const WaveInputs wave = MakeWave(c);
  const AttentionSaved before = attention.Forward(wave.batch, wave.q_HTE, wave.k_TKE, wave.v_TKE);
  for (int run = 0; run < 2; ++run) EXPECT_LT(ErrorOf(c, attention), kExact);
  EXPECT_TRUE(dense.asked().empty()) << "three forwards have just paid";
  EXPECT_LT(ErrorOf(c, attention), kExact);
  EXPECT_EQ(dense.Count(/*forward=*/true), 1);
  EXPECT_EQ(dense.Count(/*forward=*/false), 1);

  // What a forward without plans saved, a backward with them reads.
  const AttentionGradients gradients = attention.Backward(wave.batch, wave.do_TD, before);
  EXPECT_EQ(dense.Count(/*forward=*/false), 2);
  const WaveInputs same = MakeWave(c);
  const auto composed = MakeComposedAttention();
  const AttentionGradients expected =
      composed->Backward(same.batch, same.do_TD, composed->Forward(same.batch, same.q_HTE, same.k_TKE, same.v_TKE));
  EXPECT_LT(RelativeError(gradients.dq_HTE, expected.dq_HTE), kExact);
  EXPECT_LT(RelativeError(wave.batch.ancestors[0].gk_CKE, same.batch.ancestors[0].gk_CKE), kExact);
  EXPECT_LT(RelativeError(wave.batch.ancestors[0].gv_CKE, same.batch.ancestors[0].gv_CKE), kExact);
}

// A part behind one without plans is the other library's with it, so it must not get plans: a backward of other keys,
// as many as the part has, would ask for them before any forward.
TEST(FlashAttentionTest, TheSecondPartOfAnAncestorGetsNoPlansBeforeTheFirst) {
  const FakeFlashCalls packed, dense;
  const BucketedCalls bucketed(dense);
  FlashAttentionOptions options = Options();
  options.dense = &bucketed;
  options.admitted.Admit({.family = {4, 2, 8, at::kDouble, /*causal=*/false},
                          .min_rows = 128,
                          .max_rows = 128,
                          .min_keys = 128,
                          .max_keys = 1280,
                          .keys_multiple = 128});
  options.flops_of_plans = 2.0 * 4 * 5 * 1024 * 4 * 8;
  const FlashAttention attention(packed, options);
  const WaveInputs wave = MakeWave({.ancestor_rows = {1024}, .spans = {{5, 0}}});
  const auto forward = [&] { return attention.Forward(wave.batch, wave.q_HTE, wave.k_TKE, wave.v_TKE); };
  forward();
  const AttentionSaved saved = forward();
  RunWave(MakeWave({.ancestor_rows = {1280 + 1024}, .spans = {{5, 0}}}), attention);
  attention.Backward(wave.batch, wave.do_TD, saved);
  EXPECT_TRUE(dense.asked().empty()) << "two forwards have just paid";
  attention.Backward(wave.batch, wave.do_TD, forward());
  EXPECT_EQ(dense.Count(/*forward=*/true), 1);
  EXPECT_EQ(dense.Count(/*forward=*/false), 1);
}

int64_t num_sent = 0;
at::Tensor CountedSend(const at::Tensor& host, at::Device device) {
  ++num_sent;
  return SendBlocking(host, device);
}

TEST(FlashAttentionTest, LayersOfAWaveSendItsOffsetsOnce) {
  FlashAttentionOptions options = Options();
  options.send = CountedSend;
  const FakeFlashCalls calls;
  const FlashAttention attention(calls, options);
  num_sent = 0;
  const WaveCase c{.ancestor_rows = {6, 3}, .spans = {{4, 0}, {3, 0}, {5, 1}}};
  for (int layer = 0; layer < 4; ++layer) RunWave(MakeWave(c), attention);
  EXPECT_EQ(num_sent, 3) << "the spans, the ancestors' rows, and the ancestors' keys";
}

TEST(FlashAttentionDeathTest, ABackwardNeedsAForward) {
  const FakeFlashCalls calls;
  const FlashAttention attention(calls, Options());
  const WaveInputs in = MakeWave({.spans = {{5, -1}}});
  AttentionSaved saved = attention.Forward(in.batch, in.q_HTE, in.k_TKE, in.v_TKE);
  EXPECT_DEATH(FlashAttention(calls, Options()).Backward(in.batch, in.do_TD, saved), "before any forward");
}

}  // namespace
}  // namespace stemma::testing
