// Split attention against fp64 autograd of the plain formula: softmax over the concatenated keys with an explicit mask.
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>
#include <string>

#include "common/cost/kernel_blocks.h"
#include "tests/testing/backends.h"
#include "tests/testing/tensors.h"
#include "tests/testing/wrong_attention.h"
#include "worker/backend/cpu/split_attention.h"
#include "worker/memory/cpu_allocator.h"

namespace stemma::worker {
namespace {

using testing::AutogradOf;
using testing::kExact;
using testing::Leaf;
using testing::Random;
using testing::RelativeError;
using testing::WrongAttention;
using testing::WrongBackward;

struct SpanCase {
  int64_t rows;
  int64_t ancestor;  // -1: none
};

struct Case {
  int64_t num_heads, num_kv_heads, head_size;
  std::vector<int64_t> ancestor_rows;
  std::vector<SpanCase> spans;
  CausalLayout layout = CausalLayout::kLoop;
  at::ScalarType dtype = at::kDouble;
  bool strided_ancestors = false;  // K/V of ancestors are views of a longer buffer

  int64_t rows() const {
    int64_t rows = 0;
    for (const SpanCase& span : spans) rows += span.rows;
    return rows;
  }
};

struct Inputs {
  at::Tensor q_HTE, k_TKE, v_TKE, do_TD;
  std::vector<at::Tensor> ancestor_k, ancestor_v;
};

// [rows, K, E]; where the case says so a view of a buffer with more rows and more heads.
template <typename Make>
at::Tensor AncestorRows(const Case& c, int64_t rows, const Make& make) {
  if (!c.strided_ancestors) return make({rows, c.num_kv_heads, c.head_size});
  return make({rows + 5, c.num_kv_heads + 1, c.head_size}).narrow(0, 2, rows).narrow(1, 1, c.num_kv_heads);
}

Inputs MakeInputs(const Case& c, uint64_t seed = 7) {
  Random random(seed);
  const auto normal = [&](at::IntArrayRef sizes) { return random.Normal(sizes, at::kFloat).to(c.dtype); };
  Inputs in{normal({c.num_heads, c.rows(), c.head_size}),
            normal({c.rows(), c.num_kv_heads, c.head_size}),
            normal({c.rows(), c.num_kv_heads, c.head_size}),
            normal({c.rows(), c.num_heads * c.head_size}),
            {},
            {}};
  for (const int64_t rows : c.ancestor_rows) {
    for (auto* of_ancestor : {&in.ancestor_k, &in.ancestor_v}) {
      of_ancestor->push_back(AncestorRows(c, rows, normal));
    }
  }
  return in;
}

struct Result {
  at::Tensor o_TD, lse_HT, dq, dk, dv;
  std::vector<at::Tensor> gk, gv;
};

double ScaleOf(const Case& c) { return 1 / std::sqrt(static_cast<double>(c.head_size)); }

AttentionBatch MakeBatch(const Case& c, const Inputs& in) {
  AttentionBatch batch;
  batch.layout = c.layout;
  batch.scale = ScaleOf(c);
  const at::ScalarType acc = c.dtype == at::kDouble ? at::kDouble : at::kFloat;
  for (size_t i = 0; i < in.ancestor_k.size(); ++i) {
    const auto zeros = [&] {
      return AncestorRows(c, in.ancestor_k[i].size(0), [&](at::IntArrayRef sizes) { return at::zeros(sizes, acc); });
    };
    batch.ancestors.push_back({in.ancestor_k[i], in.ancestor_v[i], zeros(), zeros()});
  }
  int64_t begin = 0;
  for (const SpanCase& span : c.spans) {
    batch.spans.push_back({begin, begin + span.rows, span.ancestor});
    begin += span.rows;
  }
  return batch;
}

Result RunSplit(const Case& c, const Inputs& in, const AttentionKernel& kernel) {
  const AttentionBatch batch = MakeBatch(c, in);
  const AttentionSaved saved = testing::SplitOver(kernel).Forward(batch, in.q_HTE, in.k_TKE, in.v_TKE);
  const AttentionGradients g = testing::SplitOver(kernel).Backward(batch, in.do_TD, saved);
  Result result{saved.o_TD, saved.lse_HT, g.dq_HTE, g.dk_TKE, g.dv_TKE, {}, {}};
  for (const AncestorKv& ancestor : batch.ancestors) {
    result.gk.push_back(ancestor.gk_CKE);
    result.gv.push_back(ancestor.gv_CKE);
  }
  return result;
}

// One span, plainly: keys are the ancestor's and the span's, masked scores are -inf.
std::pair<at::Tensor, at::Tensor> PlainSpan(const at::Tensor& q_HRE, const at::Tensor& k_KSE, const at::Tensor& v_KSE,
                                            double scale) {
  const int64_t rows = q_HRE.size(1), keys = k_KSE.size(1), group = q_HRE.size(0) / k_KSE.size(0);
  const at::Tensor k = k_KSE.repeat_interleave(group, 0), v = v_KSE.repeat_interleave(group, 0);
  const at::Tensor hidden = at::ones({rows, keys}, at::kBool).triu(keys - rows + 1);
  const at::Tensor scores = (at::matmul(q_HRE, k.transpose(1, 2)) * scale).masked_fill(hidden, -INFINITY);
  return {at::matmul(scores.softmax(2), v), scores.logsumexp({2})};
}

Result RunPlain(const Case& c, const Inputs& in) {
  std::vector<at::Tensor> leaves = {Leaf(in.q_HTE), Leaf(in.k_TKE), Leaf(in.v_TKE)};
  const size_t n = in.ancestor_k.size();
  for (const at::Tensor& k : in.ancestor_k) leaves.push_back(Leaf(k));
  for (const at::Tensor& v : in.ancestor_v) leaves.push_back(Leaf(v));
  std::vector<at::Tensor> outs, lses;
  int64_t begin = 0;
  for (const SpanCase& span : c.spans) {
    at::Tensor k_SKE = leaves[1].narrow(0, begin, span.rows), v_SKE = leaves[2].narrow(0, begin, span.rows);
    if (span.ancestor >= 0) {
      k_SKE = at::cat({leaves[3 + span.ancestor], k_SKE}, 0);
      v_SKE = at::cat({leaves[3 + n + span.ancestor], v_SKE}, 0);
    }
    if (span.rows == 0) continue;
    const auto [out, lse] =
        PlainSpan(leaves[0].narrow(1, begin, span.rows), k_SKE.transpose(0, 1), v_SKE.transpose(0, 1), ScaleOf(c));
    begin += span.rows;
    outs.push_back(out);
    lses.push_back(lse);
  }
  const at::Tensor o_TD = at::cat(outs, 1).permute({1, 0, 2}).reshape({c.rows(), c.num_heads * c.head_size});
  const at::Tensor loss = (o_TD * in.do_TD.to(at::kDouble)).sum();
  // An ancestor without spans has no gradient.
  const auto g = torch::autograd::grad({loss}, leaves, {}, /*retain_graph=*/false, /*create_graph=*/false,
                                       /*allow_unused=*/true);
  Result result{o_TD, at::cat(lses, 1), g[0], g[1], g[2], {}, {}};
  for (size_t i = 0; i < n; ++i) {
    result.gk.push_back(g[3 + i].defined() ? g[3 + i] : at::zeros_like(leaves[3 + i]));
    result.gv.push_back(g[3 + n + i].defined() ? g[3 + n + i] : at::zeros_like(leaves[3 + n + i]));
  }
  return result;
}

// The largest error over all outputs and gradients.
double WorstError(const Result& actual, const Result& expected) {
  double worst = 0;
  const auto take = [&](const at::Tensor& a, const at::Tensor& e) {
    const double error = RelativeError(a, e);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  };
  take(actual.o_TD, expected.o_TD);
  take(actual.lse_HT, expected.lse_HT);
  take(actual.dq, expected.dq);
  take(actual.dk, expected.dk);
  take(actual.dv, expected.dv);
  for (size_t i = 0; i < expected.gk.size(); ++i) {
    take(actual.gk[i], expected.gk[i]);
    take(actual.gv[i], expected.gv[i]);
  }
  return worst;
}

double ErrorOf(const Case& c) {
  const Inputs in = MakeInputs(c);
  return WorstError(RunSplit(c, in, CpuAttention()), RunPlain(c, in));
}

std::string Describe(const Case& c) {
  std::ostringstream text;
  text << c.num_heads << "/" << c.num_kv_heads << " heads of " << c.head_size << ", ancestors";
  for (const int64_t rows : c.ancestor_rows) text << " " << rows;
  text << ", spans";
  for (const SpanCase& span : c.spans) text << " " << span.rows << "@" << span.ancestor;
  text << (c.layout == CausalLayout::kPadded ? ", padded" : ", loop");
  return text.str();
}

// Prefix lengths that are no multiple of any block of the kernel, times row counts: DualKV's grid, reduced.
TEST(AttentionTest, AgreesWithAutogradOverPrefixAndSuffixLengths) {
  for (const int64_t prefix : {1, 15, 16, 31, 64, 127, 129, 257, 513}) {
    for (const int64_t rows : {1, 7, 16, 33, 130}) {
      const Case c{4, 2, 16, {prefix}, {{rows, 0}}};
      EXPECT_LT(ErrorOf(c), kExact) << Describe(c);
    }
  }
}

// Causal calls of more rows than a block of keys, and of none that fill their blocks.
TEST(AttentionTest, AgreesWithAutogradOverLongSpans) {
  for (const int64_t rows : {511, 512, 513, 700, 1100}) {
    for (const CausalLayout layout : {CausalLayout::kLoop, CausalLayout::kPadded}) {
      const Case c{4, 2, 16, {530}, {{rows, 0}, {3, 0}}, layout};
      EXPECT_LT(ErrorOf(c), kExact) << Describe(c);
    }
  }
}

TEST(AttentionTest, AgreesWithAutogradOverHeadShapes) {
  for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{4, 4}, {4, 2}, {8, 1}, {12, 2}, {16, 2}}) {
    for (const int64_t head_size : {16, 32, 64, 80, 128}) {
      for (const CausalLayout layout : {CausalLayout::kLoop, CausalLayout::kPadded}) {
        const Case c{heads, kv_heads, head_size, {37}, {{9, 0}, {5, 0}, {1, 0}}, layout};
        EXPECT_LT(ErrorOf(c), kExact) << Describe(c);
      }
    }
  }
}

// flash-preference's shapes: prefixes that branch, empty and one-token rows among them.
TEST(AttentionTest, AgreesWithAutogradForSeveralPromptsInAWave) {
  for (const CausalLayout layout : {CausalLayout::kLoop, CausalLayout::kPadded}) {
    for (const Case& c : {
             Case{8, 2, 16, {256}, {{64, 0}, {32, 0}}, layout},
             Case{8, 2, 16, {128, 64, 200}, {{64, 0}, {32, 0}, {23, 1}, {100, 1}, {123, 2}, {25, 2}}, layout},
             Case{8, 2, 16, {128, 200}, {{128, 0}, {128, 0}, {128, 0}, {200, 1}, {200, 1}, {200, 1}}, layout},
             Case{8, 2, 16, {16, 16, 16}, {{8, -1}, {8, -1}, {0, 0}, {0, 0}, {0, 1}, {1, 1}, {1, 2}, {0, 2}}, layout},
             Case{4, 2, 16, {5}, {{1, 0}, {1, 0}, {1, 0}, {1, 0}}, layout},
             Case{4, 2, 16, {}, {{1, -1}}, layout},
             Case{4, 2, 16, {}, {{3, -1}, {17, -1}, {0, -1}, {40, -1}}, layout},
             Case{4, 2, 16, {3, 9}, {{3, -1}, {17, 1}, {2, -1}, {4, 0}, {5, 1}}, layout},
         }) {
      EXPECT_LT(ErrorOf(c), kExact) << Describe(c);
    }
  }
}

TEST(AttentionTest, ReadsAncestorsThatAreViewsOfALongerBuffer) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    Case c{8, 4, 32, {41, 7}, {{9, 0}, {12, 0}, {4, 1}}};
    c.dtype = dtype;
    c.strided_ancestors = true;
    // fp32: sums of some hundred products, 1e-7 each.
    EXPECT_LT(ErrorOf(c), dtype == at::kDouble ? kExact : 2e-5);
  }
}

TEST(AttentionTest, AddsToTheAncestorsGradients) {
  const Case c{4, 2, 16, {11}, {{5, 0}, {3, 0}}};
  const Inputs in = MakeInputs(c);
  const AttentionBatch batch = MakeBatch(c, in);
  const CpuAttention kernel;
  const AttentionSaved saved = testing::SplitOver(kernel).Forward(batch, in.q_HTE, in.k_TKE, in.v_TKE);
  testing::SplitOver(kernel).Backward(batch, in.do_TD, saved);
  const at::Tensor once = batch.ancestors[0].gk_CKE.clone();
  testing::SplitOver(kernel).Backward(batch, in.do_TD, saved);
  EXPECT_LT(RelativeError(batch.ancestors[0].gk_CKE, 2 * once), kExact);
}

TEST(AttentionTest, HandlesAWaveWithoutRows) {
  const Case c{4, 2, 16, {11}, {{0, 0}}};
  const Inputs in = MakeInputs(c);
  const Result result = RunSplit(c, in, CpuAttention());
  EXPECT_EQ(result.o_TD.size(0), 0);
  EXPECT_EQ(result.gk[0].abs().max().item<double>(), 0);
}

// Large negative and positive scores: one part's weight vanishes, the merge must not make NaN.
TEST(AttentionTest, MergesPartsOfVeryDifferentWeight) {
  for (const double factor : {-60.0, 60.0}) {
    const Case c{4, 2, 16, {20}, {{9, 0}, {5, 0}}};
    Inputs in = MakeInputs(c);
    in.q_HTE = in.q_HTE.abs();
    in.ancestor_k[0] = in.ancestor_k[0].abs() * factor;
    in.k_TKE = in.k_TKE.abs() * -factor;
    EXPECT_LT(WorstError(RunSplit(c, in, CpuAttention()), RunPlain(c, in)), 1e-11);  // scores of some thousand
  }
}

TEST(AttentionTest, SinglePrecisionIsCloseToDouble) {
  for (const CausalLayout layout : {CausalLayout::kLoop, CausalLayout::kPadded}) {
    Case c{8, 2, 64, {200}, {{64, 0}, {23, 0}, {1, 0}}, layout};
    c.dtype = at::kFloat;
    EXPECT_LT(ErrorOf(c), 1e-5);  // 1e-7 per operation, sums of some hundred
  }
}

TEST(AttentionTest, Bfloat16RoundsOnlyItsResults) {
  Case c{8, 2, 64, {200}, {{64, 0}, {23, 0}, {1, 0}}};
  c.dtype = at::kBFloat16;
  const Inputs in = MakeInputs(c);
  const Result actual = RunSplit(c, in, CpuAttention()), expected = RunPlain(c, in);
  EXPECT_LT(RelativeError(actual.o_TD, expected.o_TD), 4e-3);  // half an ulp of bf16 is 2^-9 of the value
  // The merged output is saved in bf16, so delta = dO·o carries its rounding.
  EXPECT_LT(RelativeError(actual.gk[0], expected.gk[0]), 1e-2);
  EXPECT_LT(RelativeError(actual.gv[0], expected.gv[0]), 1e-5);
  EXPECT_EQ(actual.gk[0].scalar_type(), at::kFloat);
  EXPECT_EQ(actual.dq.scalar_type(), at::kBFloat16);
}

// Each mistake leaves the forward exact; a loss-only test could not see it.
TEST(AttentionControlTest, WrongMergesFailByTheKnownMargins) {
  const Case c{8, 2, 32, {64}, {{16, 0}, {16, 0}, {9, 0}}};
  const Inputs in = MakeInputs(c);
  const Result expected = RunPlain(c, in);
  struct Expectation {
    WrongBackward wrong;
    double gk_at_least;
    bool gv_exact;
  };
  for (const auto& [wrong, gk_at_least, gv_exact] :
       {Expectation{WrongBackward::kOwnOutputAndLse, 0.02, true}, Expectation{WrongBackward::kOwnOutput, 0.02, true},
        Expectation{WrongBackward::kOwnLse, 0.1, false}, Expectation{WrongBackward::kNoAncestor, 0.99, false}}) {
    const Result actual = RunSplit(c, in, WrongAttention(wrong));
    EXPECT_LT(RelativeError(actual.o_TD, expected.o_TD), kExact);
    EXPECT_GT(RelativeError(actual.gk[0], expected.gk[0]), gk_at_least) << static_cast<int>(wrong);
    EXPECT_GT(RelativeError(actual.dq, expected.dq), gk_at_least) << static_cast<int>(wrong);
    EXPECT_EQ(RelativeError(actual.gv[0], expected.gv[0]) < kExact, gv_exact) << static_cast<int>(wrong);
  }
}

// gK does not depend on how the suffixes are cut into waves, nor on their order.
TEST(AttentionTest, GradientsOfAncestorsDoNotDependOnWaves) {
  const Case whole{8, 2, 32, {75}, {{16, 0}, {1, 0}, {9, 0}, {30, 0}, {4, 0}}};
  const Inputs in = MakeInputs(whole);
  const Result expected = RunSplit(whole, in, CpuAttention());
  const std::vector<int64_t> begins = {0, 16, 17, 26, 56};
  for (const std::vector<std::vector<int64_t>>& waves : std::vector<std::vector<std::vector<int64_t>>>{
           {{0}, {1}, {2}, {3}, {4}}, {{4, 3, 2, 1, 0}}, {{3, 1}, {0, 4, 2}}, {{2, 0, 1}, {4}, {3}}}) {
    at::Tensor gk = at::zeros_like(expected.gk[0]), gv = at::zeros_like(expected.gv[0]);
    for (const std::vector<int64_t>& wave : waves) {
      Case part = whole;
      part.spans.clear();
      std::vector<at::Tensor> q, k, v, dout;
      for (const int64_t i : wave) {
        const int64_t rows = whole.spans[i].rows;
        part.spans.push_back(whole.spans[i]);
        q.push_back(in.q_HTE.narrow(1, begins[i], rows));
        k.push_back(in.k_TKE.narrow(0, begins[i], rows));
        v.push_back(in.v_TKE.narrow(0, begins[i], rows));
        dout.push_back(in.do_TD.narrow(0, begins[i], rows));
      }
      const Inputs part_in{at::cat(q, 1), at::cat(k, 0), at::cat(v, 0), at::cat(dout, 0), in.ancestor_k, in.ancestor_v};
      const Result result = RunSplit(part, part_in, CpuAttention());
      gk += result.gk[0];
      gv += result.gv[0];
    }
    EXPECT_LT(RelativeError(gk, expected.gk[0]), kExact);
    EXPECT_LT(RelativeError(gv, expected.gv[0]), kExact);
  }
}

// Every call reads views: beside the results, forward holds the ancestor's partial output and one span's.
TEST(AttentionTest, ForwardCopiesNoKeysOrQueries) {
  InstallCpuAllocator();
  Case c{8, 2, 64, {512}, {{256, 0}, {256, 0}, {256, 0}, {256, 0}}};
  c.dtype = at::kFloat;
  const Inputs in = MakeInputs(c);
  const AttentionBatch batch = MakeBatch(c, in);
  const int64_t heads_row_bytes = c.num_heads * c.head_size * 4, lse_row_bytes = c.num_heads * 4;
  const int64_t results = c.rows() * (heads_row_bytes + lse_row_bytes);
  const int64_t partials = (c.rows() + 256) * (heads_row_bytes + lse_row_bytes);
  at::set_num_threads(1);  // the kernel's scratch is per thread
  ResetPeakBytes();
  const int64_t before = CpuMemoryStats().current_bytes;
  const AttentionSaved saved = testing::SplitOver(CpuAttention()).Forward(batch, in.q_HTE, in.k_TKE, in.v_TKE);
  const int64_t extra = CpuMemoryStats().peak_bytes - before - results - partials;
  const int64_t scratch = AttentionBlocks(c.num_heads / c.num_kv_heads, c.rows(), 512, c.head_size).forward() * 4;
  EXPECT_GE(extra, 0);
  EXPECT_LE(extra, scratch);
  EXPECT_LT(scratch, 2 * 256 * (c.num_kv_heads * c.head_size * 4));  // a copy of one span's keys and values would show
}

TEST(AttentionDeathTest, ZeroKeysAreOurBug) {
  const CpuAttention kernel;
  const at::Tensor q = at::zeros({1, 1, 1, 2, 16}), k = at::zeros({1, 1, 0, 16});
  EXPECT_DEATH(kernel.Forward({q, k, k, /*causal=*/false, /*scale=*/1}), "zero keys");
}

TEST(AttentionDeathTest, UnequalHeadCountsAreOurBug) {
  const CpuAttention kernel;
  const at::Tensor q = at::zeros({1, 4, 1, 2, 16}), k = at::zeros({1, 2, 2, 16});
  EXPECT_DEATH(kernel.Forward({q, k, k, /*causal=*/false, /*scale=*/1}), "kv heads of the queries");
}

}  // namespace
}  // namespace stemma::worker
