// Every entry of the kernel table: the CPU's fused kernel against the composed one, on drawn shapes, in every run
// dtype.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/namespaces.h"
#include "worker/backend/accumulate_type.h"
#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/memory/cpu_allocator.h"

namespace stemma::testing {
namespace {

constexpr uint32_t kSeed = 20261122;
constexpr int kCases = 12;

using Outputs = std::vector<at::Tensor>;

// The largest difference, as a part of the largest element of each tensor, or of 1: operands are of that size, so that
// a result that is 0 but for rounding is compared with them.
double WorstError(const Outputs& actual, const Outputs& expected) {
  double worst = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const at::Tensor a = actual[i].to(at::kDouble), b = expected[i].to(at::kDouble);
    if (b.numel() == 0) continue;
    const double scale = std::max(b.abs().max().item<double>(), 1.0);
    const double error = (a - b).abs().max().item<double>() / scale;
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

// fp64: tens of roundings of sums of some hundred terms. fp32: the same, times 2^29. bf16: one rounding of an output to
// 8 bits, taken on either side of a tie (2^-8), and once more where an intermediate is stored.
double Tolerance(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-13 : dtype == at::kFloat ? 2e-5 : 1.0 / 64; }

// Draws sizes and numbers from a seed that failures print.
class Drawn {
 public:
  explicit Drawn(uint32_t seed) : random_(seed) { at::manual_seed(seed); }
  int64_t Size(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  bool Coin() { return Size(0, 1) == 1; }
  at::Tensor Normal(at::IntArrayRef sizes, at::ScalarType dtype) { return at::randn(sizes, at::kDouble).to(dtype); }
  at::Tensor Integers(int64_t high, int64_t count) { return at::randint(high, {count}, at::kLong); }

 private:
  std::mt19937 random_;
};

// Runs one entry of a table on inputs drawn from the same seed.
using Entry = std::function<Outputs(const Kernels& kernels, at::ScalarType dtype, Drawn drawn)>;

void ExpectBackendsAgree(const Entry& entry) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (uint32_t i = 0; i < kCases; ++i) {
      const uint32_t seed = kSeed + i;
      const Outputs fused = entry(MakeCpuBackend().kernels, dtype, Drawn(seed));
      const Outputs composed = entry(ComposedKernels(), dtype, Drawn(seed));
      EXPECT_LE(WorstError(fused, composed), Tolerance(dtype)) << c10::toString(dtype) << " seed " << seed;
    }
  }
}

Outputs RmsNorm(const Kernels& kernels, at::ScalarType dtype, Drawn drawn) {
  const int64_t rows = drawn.Size(1, 40), width = drawn.Size(1, 130);
  const at::Tensor x = drawn.Normal({rows, width}, dtype), weight = drawn.Normal({width}, dtype);
  const at::Tensor y = at::empty_like(x), rstd = at::empty({rows}, AccType(dtype));
  kernels.rms_norm_forward({.x_TD = x, .weight_D = weight, .y_TD = y, .rstd_T = rstd, .eps = 1e-6});
  const at::Tensor dy = drawn.Normal({rows, width}, dtype), dx = at::empty_like(x);
  const at::Tensor residual = drawn.Coin() ? drawn.Normal({rows, width}, dtype) : at::Tensor();
  const at::Tensor dweight = at::ones({width}, AccType(dtype));
  kernels.rms_norm_backward({.dy_TD = dy,
                             .x_TD = x,
                             .rstd_T = rstd,
                             .weight_D = weight,
                             .residual_TD = residual,
                             .dx_TD = dx,
                             .dweight_D = dweight});
  return {y, rstd, dx, dweight};
}

Outputs Swiglu(const Kernels& kernels, at::ScalarType dtype, Drawn drawn) {
  const int64_t rows = drawn.Size(1, 40), width = drawn.Size(1, 130);
  const at::Tensor x = drawn.Normal({rows, 2 * width}, dtype), y = at::empty({rows, width}, dtype);
  kernels.swiglu_forward({.gate_up_TJ = x, .y_TF = y});
  const at::Tensor dy = drawn.Normal({rows, width}, dtype), dx = at::empty_like(x);
  kernels.swiglu_backward({.dy_TF = dy, .gate_up_TJ = x, .dgate_up_TJ = dx});
  return {y, dx};
}

Outputs Qkv(const Kernels& kernels, at::ScalarType dtype, Drawn drawn) {
  const int64_t rows = drawn.Size(1, 30), kv_heads = drawn.Size(1, 3), size = 2 * drawn.Size(1, 20);
  const int64_t heads = drawn.Coin() ? kv_heads * drawn.Size(1, 3) : 0, positions = 50;
  const bool norm = drawn.Coin();
  const at::ScalarType acc = AccType(dtype);
  const at::Tensor qkv = drawn.Normal({rows, (heads + 2 * kv_heads) * size}, dtype);
  const at::Tensor at_position = drawn.Integers(positions, rows);
  const at::Tensor angle = drawn.Normal({positions, size / 2}, at::kDouble);
  const at::Tensor cos = angle.cos().to(acc), sin = angle.sin().to(acc), none;
  const at::Tensor q_weight = drawn.Normal({size}, dtype), k_weight = drawn.Normal({size}, dtype);
  const at::Tensor q = at::empty({heads, rows, size}, dtype), k = at::empty({rows, kv_heads, size}, dtype);
  const at::Tensor v = at::empty_like(k), rstd = at::zeros({rows, heads + kv_heads}, acc);
  kernels.qkv_forward({.qkv_TJ = qkv,
                       .positions_T = at_position,
                       .cos_PE = cos,
                       .sin_PE = sin,
                       .q_weight_E = norm && heads > 0 ? q_weight : none,
                       .k_weight_E = norm ? k_weight : none,
                       .eps = 1e-6,
                       .q_HTE = heads > 0 ? q : none,
                       .k_TKE = k,
                       .v_TKE = v,
                       .rstd_TJ = norm ? rstd : none});
  // K's gradients come in the accumulate dtype (summed over waves) or in the run dtype.
  const at::ScalarType grad = drawn.Coin() ? acc : dtype;
  const at::Tensor dq = drawn.Normal({heads, rows, size}, dtype), dqkv = at::empty_like(qkv);
  const at::Tensor dk = drawn.Normal({rows, kv_heads, size}, grad), dv = drawn.Normal({rows, kv_heads, size}, grad);
  const at::Tensor dq_weight = at::ones({size}, acc), dk_weight = at::ones({size}, acc);
  kernels.qkv_backward({.dq_HTE = heads > 0 ? dq : none,
                        .dk_TKE = dk,
                        .dv_TKE = dv,
                        .positions_T = at_position,
                        .cos_PE = cos,
                        .sin_PE = sin,
                        .q_weight_E = norm && heads > 0 ? q_weight : none,
                        .k_weight_E = norm ? k_weight : none,
                        .qkv_TJ = norm ? qkv : none,
                        .rstd_TJ = norm ? rstd : none,
                        .dq_weight_E = dq_weight,
                        .dk_weight_E = dk_weight,
                        .dqkv_TJ = dqkv});
  return {q, k, v, rstd, dqkv, dq_weight, dk_weight};
}

Outputs Embedding(const Kernels& kernels, at::ScalarType dtype, Drawn drawn) {
  const int64_t rows = drawn.Size(1, 60), width = drawn.Size(1, 40), vocab = 7;  // tokens repeat, or are none
  const at::Tensor dweight = at::ones({vocab, width}, AccType(dtype));
  const at::Tensor tokens = drawn.Integers(vocab + 1, rows) - 1, dx = drawn.Normal({rows, width}, dtype);
  kernels.embedding_backward({.tokens_T = tokens, .dx_TD = dx, .dweight_VD = dweight});
  return {dweight};
}

// `dlogits_in_run_dtype`: as a GPU asks for them, in the memory of the logits, a row at the beginning of each.
struct HeadShape {
  int64_t rows, vocab;
  bool dlogits_in_run_dtype = false;
};

Outputs RunHead(const Kernels& kernels, at::ScalarType dtype, Drawn drawn, const HeadShape& shape) {
  const int64_t rows = shape.rows, width = drawn.Size(1, 40), vocab = shape.vocab;
  const at::ScalarType acc = AccType(dtype);
  const at::Tensor hidden = drawn.Normal({rows, width}, dtype), weight = drawn.Normal({vocab, width}, dtype);
  const at::Tensor targets = drawn.Integers(vocab, rows), logits = at::empty({rows, vocab}, acc), none;
  const bool entropy = drawn.Coin();
  const at::Tensor softmax = at::empty({rows, 2}, at::kDouble), log_prob = at::empty({rows}, at::kDouble);
  const at::Tensor entropies = at::zeros({rows}, at::kDouble);
  kernels.logits({.hidden_TD = hidden, .weight_VD = weight, .logits_TV = logits});
  kernels.head_forward({.logits_TV = logits,
                        .targets_T = targets,
                        .softmax_T2 = softmax,
                        .log_prob_T = log_prob,
                        .entropy_T = entropy ? entropies : none,
                        .inverse_temperature = 1.25});
  const at::Tensor dlog_prob = drawn.Normal({rows}, at::kDouble), dentropy = drawn.Normal({rows}, at::kDouble);
  dlog_prob[0] = 0;
  dentropy[0] = 0;
  const at::Tensor dlogits = shape.dlogits_in_run_dtype ? logits.view(dtype).narrow(1, 0, vocab) : logits;
  kernels.head_backward({.logits_TV = logits,
                         .dlogits_TV = dlogits,
                         .targets_T = targets,
                         .softmax_T2 = softmax,
                         .dlog_prob_T = dlog_prob,
                         .entropy_T = entropy ? entropies : none,
                         .dentropy_T = entropy ? dentropy : none,
                         .inverse_temperature = 1.25});
  const at::Tensor dhidden = at::empty_like(hidden), dweight = at::ones({vocab, width}, acc);
  kernels.logits_backward({.dlogits_TV = dlogits, .weight_VD = weight, .dhidden_TD = dhidden});
  kernels.add_weight_gradient({.dy_TO = dlogits, .x_TI = hidden, .dweight_OI = dweight});
  return {softmax, log_prob, entropies, dlogits.clone(), dhidden, dweight};
}

Outputs Head(const Kernels& kernels, at::ScalarType dtype, Drawn drawn) {
  const int64_t rows = drawn.Size(1, 20), vocab = drawn.Size(2, 2000);
  return RunHead(kernels, dtype, drawn, {rows, vocab});
}
// More than the composed head works on at a time.
Outputs HeadOfManyRows(const Kernels& kernels, at::ScalarType dtype, Drawn drawn) {
  const int64_t rows = drawn.Size(120, 400), vocab = drawn.Size(2, 200);
  return RunHead(kernels, dtype, drawn, {rows, vocab});
}

Outputs WeightGradient(const Kernels& kernels, at::ScalarType dtype, Drawn drawn) {
  const int64_t rows = drawn.Size(1, 1100), in = drawn.Size(1, 20), out = drawn.Size(1, 20);
  const at::Tensor dweight = at::ones({out, in}, AccType(dtype));
  const at::Tensor dy = drawn.Normal({rows, out}, dtype), x = drawn.Normal({rows, in}, dtype);
  kernels.add_weight_gradient({.dy_TO = dy, .x_TI = x, .dweight_OI = dweight});
  return {dweight};
}

TEST(BackendsTest, RmsNormIsTheComposed) { ExpectBackendsAgree(RmsNorm); }
TEST(BackendsTest, SwigluIsTheComposed) { ExpectBackendsAgree(Swiglu); }
TEST(BackendsTest, HeadsOfAFusedProductAreTheComposed) { ExpectBackendsAgree(Qkv); }
TEST(BackendsTest, EmbeddingGradientsAreTheComposed) { ExpectBackendsAgree(Embedding); }
TEST(BackendsTest, TheHeadIsTheComposed) { ExpectBackendsAgree(Head); }
TEST(BackendsTest, TheHeadOfManyRowsIsTheComposed) { ExpectBackendsAgree(HeadOfManyRows); }
TEST(BackendsTest, WeightGradientsAreTheComposed) { ExpectBackendsAgree(WeightGradient); }

// The formula on all elements at once, in double. A vote has no memory of its own in a plan: what it takes may not grow
// with the model (4 MiB hold a copy of a slice in double).
TEST(BackendsTest, TheNormOfALargeArrayTakesNoCopyOfIt) {
  InstallCpuAllocator();
  for (const int64_t elements : {int64_t{1}, int64_t{1} << 18, int64_t{5'000'011}}) {
    Drawn drawn(kSeed);
    const at::Tensor values = drawn.Normal({elements}, at::kFloat), norm = at::empty({}, at::kDouble);
    const double expected = std::sqrt(values.to(at::kDouble).square().sum().item<double>());
    ResetPeakBytes();
    const int64_t before = CpuMemoryStats().current_bytes;
    MakeCpuBackend().kernels.vector_norm({values, norm});
    EXPECT_NEAR(norm.item<double>(), expected, 1e-13 * expected) << "a sum in double, in another order";
    EXPECT_LE(CpuMemoryStats().peak_bytes - before, 4 << 20) << elements << " elements";
  }
}

// Gradients in the run dtype lie in the logits' memory, of which no row's may be written before its logits are read.
TEST(BackendsTest, TheComposedHeadWritesNarrowGradientsIntoTheLogitsOfTheirOwnRows) {
  for (uint32_t seed = kSeed; seed < kSeed + kCases; ++seed) {
    const HeadShape shape{.rows = Drawn(seed).Size(120, 400), .vocab = 50};
    HeadShape narrow = shape;
    narrow.dlogits_in_run_dtype = true;
    const Outputs wide = RunHead(ComposedKernels(), at::kBFloat16, Drawn(seed), shape);
    const Outputs actual = RunHead(ComposedKernels(), at::kBFloat16, Drawn(seed), narrow);
    EXPECT_TRUE(actual[3].equal(wide[3].to(at::kBFloat16))) << "seed " << seed;
  }
}

// It stands in for a GPU's kernel that was refused, beside which a plan counts a chunk's logits alone.
TEST(BackendsTest, TheComposedHeadTakesLittleBesideALargeChunkOfLogits) {
  InstallCpuAllocator();
  constexpr int64_t kRows = 2048, kVocab = 1000, kRowsBeside = 1536;
  Drawn drawn(kSeed);
  const at::Tensor logits = drawn.Normal({kRows, kVocab}, at::kFloat), targets = drawn.Integers(kVocab, kRows);
  const at::Tensor softmax = at::empty({kRows, 2}, at::kDouble), log_prob = at::empty({kRows}, at::kDouble);
  const at::Tensor entropy = at::empty({kRows}, at::kDouble), dlog_prob = drawn.Normal({kRows}, at::kDouble);
  const at::Tensor dentropy = drawn.Normal({kRows}, at::kDouble);
  const int64_t before = CpuMemoryStats().current_bytes;
  ResetPeakBytes();
  ComposedKernels().head_forward({.logits_TV = logits,
                                  .targets_T = targets,
                                  .softmax_T2 = softmax,
                                  .log_prob_T = log_prob,
                                  .entropy_T = entropy,
                                  .inverse_temperature = 1.25});
  EXPECT_LE(CpuMemoryStats().peak_bytes - before, kRowsBeside * kVocab * 4) << "forward";
  ResetPeakBytes();
  ComposedKernels().head_backward({.logits_TV = logits,
                                   .dlogits_TV = logits,
                                   .targets_T = targets,
                                   .softmax_T2 = softmax,
                                   .dlog_prob_T = dlog_prob,
                                   .entropy_T = entropy,
                                   .dentropy_T = dentropy,
                                   .inverse_temperature = 1.25});
  EXPECT_LE(CpuMemoryStats().peak_bytes - before, kRowsBeside * kVocab * 4) << "backward";
}

TEST(BackendsTest, BothFindTheFirstNumberThatIsNotFinite) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor values = at::ones({1000}, dtype);
    for (const Kernels& kernels : {MakeCpuBackend().kernels, ComposedKernels()}) {
      const auto found_in = [&kernels](const at::Tensor& array) {
        const at::Tensor index = at::full({}, -2, at::kLong);
        kernels.first_nonfinite({array, index});
        return index.item<int64_t>();
      };
      EXPECT_EQ(found_in(values), -1);
      const at::Tensor bad = values.clone();
      bad[999] = INFINITY;
      EXPECT_EQ(found_in(bad), 999);
      bad[37] = NAN;
      EXPECT_EQ(found_in(bad), 37);
    }
  }
}

// Checkpoints keep digests that are made of these sums. The numbers were computed apart, from the formula with whole
// numbers of any size: six words from the fourth element on, in rows of four.
TEST(BackendsTest, TheSumOfWordsIsWhatCheckpointsHave) {
  struct Words {
    at::ScalarType integer, dtype;
    int64_t mask;
    uint64_t sum;
  };
  for (const Words& words : {Words{at::kShort, at::kBFloat16, INT16_MAX, 0x6ec297dd3de9c2b9u},
                             Words{at::kInt, at::kFloat, INT32_MAX, 0xa80c9ad7c67842b9u},
                             Words{at::kLong, at::kDouble, INT64_MAX, 0xc0d77c44467842b9u}}) {
    const at::Tensor values = at::arange(1, 7, at::kLong).mul(0x123456789abcdef).bitwise_and(words.mask);
    const at::Tensor of_run = values.to(words.integer).view(words.dtype), sum = at::zeros({}, at::kLong);
    for (const Kernels& kernels : {MakeCpuBackend().kernels, ComposedKernels()}) {
      kernels.word_sum(
          {.values = of_run, .first = 3, .columns = 4, .row_begin = 10, .column_begin = 20, .sum = sum.fill_(0)});
      EXPECT_EQ(static_cast<uint64_t>(sum.item<int64_t>()), words.sum) << c10::toString(words.dtype);
    }
  }
}

// Attention: spans of drawn lengths, some of one ancestor, some without.
Outputs Attention(const AttentionOp& op, at::ScalarType dtype, Drawn drawn) {
  const int64_t kv_heads = drawn.Size(1, 3), heads = kv_heads * drawn.Size(1, 3), size = 2 * drawn.Size(1, 16);
  AttentionBatch batch;
  batch.scale = 1 / std::sqrt(static_cast<double>(size));
  batch.layout = drawn.Coin() ? CausalLayout::kLoop : CausalLayout::kPadded;
  Outputs outputs;
  int64_t rows = 0;
  for (int64_t a = drawn.Size(0, 2); a > 0; --a) {
    const std::vector<int64_t> sizes = {drawn.Size(1, 40), kv_heads, size};
    AncestorKv ancestor{drawn.Normal(sizes, dtype), drawn.Normal(sizes, dtype), at::ones(sizes, AccType(dtype)),
                        at::ones(sizes, AccType(dtype))};
    outputs.push_back(ancestor.gk_CKE);
    outputs.push_back(ancestor.gv_CKE);
    batch.ancestors.push_back(ancestor);
    for (int64_t s = drawn.Size(1, 4); s > 0; --s) {
      const int64_t count = drawn.Size(1, 20);
      batch.spans.push_back({rows, rows + count, static_cast<int64_t>(batch.ancestors.size()) - 1});
      rows += count;
    }
  }
  const int64_t alone = drawn.Size(1, 30);
  batch.spans.push_back({rows, rows + alone, -1});
  rows += alone;
  const at::Tensor q = drawn.Normal({heads, rows, size}, dtype), k = drawn.Normal({rows, kv_heads, size}, dtype);
  const at::Tensor v = drawn.Normal({rows, kv_heads, size}, dtype);
  const AttentionSaved saved = op.Forward(batch, q, k, v);
  const AttentionGradients gradients = op.Backward(batch, drawn.Normal({rows, heads * size}, dtype), saved);
  for (const at::Tensor& x : {saved.o_TD, gradients.dq_HTE, gradients.dk_TKE, gradients.dv_TKE}) outputs.push_back(x);
  return outputs;
}

TEST(BackendsTest, SplitAttentionIsAttentionOnWholeScores) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (uint32_t seed = kSeed; seed < kSeed + 2 * kCases; ++seed) {
      const Outputs split = Attention(*MakeCpuBackend().attention, dtype, Drawn(seed));
      const Outputs whole = Attention(*MakeComposedAttention(), dtype, Drawn(seed));
      EXPECT_LE(WorstError(split, whole), Tolerance(dtype)) << c10::toString(dtype) << " seed " << seed;
    }
  }
}

// Negative control: an entry that differs in one term of its formula is seen.
TEST(BackendsControlTest, AWrongEpsilonIsSeen) {
  const auto wrong = [](const RmsNormForwardOperands& args) {
    ComposedKernels().rms_norm_forward({args.x_TD, args.weight_D, args.y_TD, args.rstd_T, args.eps * 2});
  };
  Kernels kernels = ComposedKernels();
  kernels.rms_norm_forward = wrong;
  EXPECT_GT(WorstError(RmsNorm(kernels, at::kDouble, Drawn(kSeed)),
                       RmsNorm(MakeCpuBackend().kernels, at::kDouble, Drawn(kSeed))),
            Tolerance(at::kDouble));
}

}  // namespace
}  // namespace stemma::testing
