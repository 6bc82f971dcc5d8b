// Attention on every instruction set that this machine can run, against the plain formula in fp64: drawn sizes, so that
// tiles of every height, half panels, odd heads and blocks on and off the diagonal come up. Nothing is written outside
// the rows, nothing is read that was not written: outputs lie between guards, scratch is full of NaN before each call.
// STEMMA_SEED draws other cases.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/cost/kernel_blocks.h"
#include "tests/testing/draw.h"
#include "worker/backend/cpu/attention.h"
#include "worker/backend/cpu/attention_table.h"

namespace stemma::worker::kernels {
namespace {

using testing::FirstSeed;

constexpr double kGuard = 12345;

double ToDouble(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
double ToDouble(double x) { return x; }

// Truncates: inputs need no correct rounding.
void Assign(Bf16& out, double x) {
  out.bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(x)) >> 16);
}
void Assign(float& out, double x) { out = static_cast<float>(x); }
void Assign(double& out, double x) { out = x; }

// Rows of heads with guards between them: [batch][kv][group][rows][width + gap].
template <typename T>
class Rows {
 public:
  Rows(int64_t batch, int64_t kv, int64_t group, int64_t rows, int64_t width, int64_t gap)
      : kv_(kv),
        group_(group),
        rows_(rows),
        width_(width),
        row_(width + gap),
        values_(batch * kv * group * rows * row_) {
    for (T& value : values_) Assign(value, kGuard);
  }

  void Fill(std::mt19937_64& random) {
    std::normal_distribution<double> normal;
    ForEach([&](T& value) { Assign(value, normal(random)); });
  }
  void Clear() {
    ForEach([](T& value) { Assign(value, 0); });
  }

  double At(int64_t b, int64_t k, int64_t i, int64_t row, int64_t e) const {
    return ToDouble(values_[Offset(b, k, i) + row * row_ + e]);
  }
  void Add(int64_t b, int64_t k, int64_t i, int64_t row, int64_t e, double x) {
    T& value = values_[Offset(b, k, i) + row * row_ + e];
    Assign(value, ToDouble(value) + x);
  }

  AttentionRows<T> Mutable() { return {values_.data(), Offset(1, 0, 0), Offset(0, 1, 0), rows_ * row_, row_}; }
  AttentionRows<const T> Const() const {
    return {values_.data(), Offset(1, 0, 0), Offset(0, 1, 0), rows_ * row_, row_};
  }

  bool GuardsStand() const {
    for (size_t i = 0; i < values_.size(); ++i) {
      if (static_cast<int64_t>(i) % row_ >= width_ && ToDouble(values_[i]) != kGuard) return false;
    }
    return true;
  }

  // max |this - expected| / max |expected|; NaN where either is.
  double ErrorTo(const Rows<double>& expected) const {
    double error = 0, largest = 0;
    for (size_t i = 0; i < values_.size(); ++i) {
      if (static_cast<int64_t>(i) % row_ >= width_) continue;
      const double difference = std::fabs(ToDouble(values_[i]) - expected.values()[i]);
      if (std::isnan(difference)) return difference;
      error = std::max(error, difference);
      largest = std::max(largest, std::fabs(expected.values()[i]));
    }
    return largest == 0 ? error : error / largest;
  }

  const std::vector<T>& values() const { return values_; }

 private:
  template <typename Use>
  void ForEach(const Use& use) {
    for (size_t i = 0; i < values_.size(); ++i) {
      if (static_cast<int64_t>(i) % row_ < width_) use(values_[i]);
    }
  }
  int64_t Offset(int64_t b, int64_t k, int64_t i) const { return ((b * kv_ + k) * group_ + i) * rows_ * row_; }

  int64_t kv_, group_, rows_, width_, row_;
  std::vector<T> values_;
};

template <typename T, typename Kv>
struct Operands {
  Rows<T> dout, q;
  Rows<Kv> k, v;

  Operands(const AttentionSize& s, int64_t gap, std::mt19937_64& random)
      : dout(s.batch, s.num_kv_heads, s.group, s.queries, s.head_size, gap),
        q(s.batch, s.num_kv_heads, s.group, s.queries, s.head_size, gap),
        k(s.batch, s.num_kv_heads, 1, s.keys, s.head_size, gap),
        v(s.batch, s.num_kv_heads, 1, s.keys, s.head_size, gap) {
    dout.Fill(random);
    q.Fill(random);
    k.Fill(random);
    v.Fill(random);
  }
};

template <typename T>
struct Results {
  Rows<T> out, lse, dq, dk, dv;

  Results(const AttentionSize& s, int64_t gap)
      : out(s.batch, s.num_kv_heads, s.group, s.queries, s.head_size, gap),
        lse(s.batch, s.num_kv_heads, s.group, s.queries, 1, gap),
        dq(s.batch, s.num_kv_heads, s.group, s.queries, s.head_size, gap),
        dk(s.batch, s.num_kv_heads, 1, s.keys, s.head_size, gap),
        dv(s.batch, s.num_kv_heads, 1, s.keys, s.head_size, gap) {
    dk.Clear();
    dv.Clear();
  }

  std::vector<Rows<T>*> all() { return {&out, &lse, &dq, &dk, &dv}; }
};

// Scores of one query head, by the formula, with what they give.
template <typename T, typename Kv>
class PlainHead {
 public:
  PlainHead(const AttentionSize& size, const Operands<T, Kv>& in, int64_t b, int64_t k, int64_t i)
      : size_(size), in_(in), b_(b), k_(k), i_(i) {}

  void AddTo(Results<double>& results) const {
    for (int64_t t = 0; t < size_.queries; ++t) AddQuery(t, results);
  }

 private:
  double Dot(const Rows<T>& query, int64_t t, const Rows<Kv>& key, int64_t c) const {
    double sum = 0;
    for (int64_t e = 0; e < size_.head_size; ++e) sum += query.At(b_, k_, i_, t, e) * key.At(b_, k_, 0, c, e);
    return sum;
  }

  void AddQuery(int64_t t, Results<double>& results) const {
    const int64_t seen = size_.causal ? t + 1 : size_.keys;
    std::vector<double> p(seen), dp(seen);
    double max = -std::numeric_limits<double>::infinity(), sum = 0, delta = 0;
    for (int64_t c = 0; c < seen; ++c) max = std::max(max, p[c] = size_.scale * Dot(in_.q, t, in_.k, c));
    for (double& x : p) sum += x = std::exp(x - max);
    for (int64_t c = 0; c < seen; ++c) {
      p[c] /= sum;
      dp[c] = Dot(in_.dout, t, in_.v, c);
      delta += p[c] * dp[c];
    }
    results.lse.Add(b_, k_, i_, t, 0, max + std::log(sum));
    for (int64_t e = 0; e < size_.head_size; ++e) {
      double out = 0, dq = 0;
      for (int64_t c = 0; c < seen; ++c) {
        const double ds = size_.scale * p[c] * (dp[c] - delta);
        out += p[c] * in_.v.At(b_, k_, 0, c, e);
        dq += ds * in_.k.At(b_, k_, 0, c, e);
        results.dv.Add(b_, k_, 0, c, e, p[c] * in_.dout.At(b_, k_, i_, t, e));
        results.dk.Add(b_, k_, 0, c, e, ds * in_.q.At(b_, k_, i_, t, e));
      }
      results.out.Add(b_, k_, i_, t, e, out);
      results.dq.Add(b_, k_, i_, t, e, dq);
    }
  }

  const AttentionSize& size_;
  const Operands<T, Kv>& in_;
  int64_t b_, k_, i_;
};

// Scratch of exactly the size that is asked for, full of NaN, with guards behind it.
template <typename T>
class NanScratch {
 public:
  explicit NanScratch(int64_t elements) : values_(elements + 64, static_cast<T>(kGuard)), elements_(elements) {
    std::fill_n(values_.begin(), elements, std::numeric_limits<T>::quiet_NaN());
  }
  T* data() { return values_.data(); }
  bool GuardsStand() const {
    return std::all_of(values_.begin() + elements_, values_.end(), [](T x) { return x == static_cast<T>(kGuard); });
  }

 private:
  std::vector<T> values_;
  int64_t elements_;
};

template <typename T, typename Kv>
void Compute(const AttentionSize& size, const Operands<T, Kv>& in, const AttentionLoops& loops, Results<T>& results) {
  NanScratch<T> forward(AttentionForwardScratch(size)), backward(AttentionBackwardScratch(size));
  AttentionForward<T, Kv>({.size = size,
                           .q = in.q.Const(),
                           .k = in.k.Const(),
                           .v = in.v.Const(),
                           .out = results.out.Mutable(),
                           .lse = results.lse.Mutable(),
                           .scratch = forward.data(),
                           .loops = &loops});
  AttentionBackward<T, Kv>({.size = size,
                            .dout = in.dout.Const(),
                            .q = in.q.Const(),
                            .out = std::as_const(results.out).Const(),
                            .lse = std::as_const(results.lse).Const(),
                            .k = in.k.Const(),
                            .v = in.v.Const(),
                            .dq = results.dq.Mutable(),
                            .dk = results.dk.Mutable(),
                            .dv = results.dv.Mutable(),
                            .scratch = backward.data(),
                            .loops = &loops});
  EXPECT_TRUE(forward.GuardsStand() && backward.GuardsStand()) << "written behind the scratch";
}

AttentionSize DrawSize(std::mt19937_64& random) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  AttentionSize size{1 + below(2), 1 + below(2), 1 + below(3), 1 + below(300), 1 + below(300), 1 + below(80), false, 0};
  if (below(4) == 0) size.queries = 1 + below(20);
  if (below(3) == 0) size.head_size = 16 * (1 + below(5));
  if (below(2) == 0) {
    size.causal = true;
    size.keys = size.queries;
  }
  size.scale = 1 / std::sqrt(static_cast<double>(size.head_size));
  return size;
}

std::string Describe(const AttentionSize& size) {
  std::ostringstream text;
  text << "batch " << size.batch << ", " << size.num_kv_heads << " x " << size.group << " heads of " << size.head_size
       << ", " << size.queries << " queries, " << size.keys << (size.causal ? " keys, causal" : " keys");
  return text.str();
}

template <typename T, typename Kv>
void ExpectTheFormula(uint64_t seed, int cases, double tolerance, double scale_factor = 1) {
  std::mt19937_64 random(seed);
  for (int i = 0; i < cases; ++i) {
    AttentionSize size = DrawSize(random);
    size.scale *= scale_factor;
    const int64_t gap = static_cast<int64_t>(random() % 40);
    const Operands<T, Kv> in(size, gap, random);
    Results<double> expected(size, gap);
    for (Rows<double>* rows : expected.all()) rows->Clear();
    for (int64_t head = 0; head < size.batch * size.num_kv_heads * size.group; ++head) {
      const int64_t kv = head / size.group;
      PlainHead<T, Kv>(size, in, kv / size.num_kv_heads, kv % size.num_kv_heads, head % size.group).AddTo(expected);
    }
    for (const AttentionLoops* loops : SupportedAttentionLoops()) {
      SCOPED_TRACE(std::string(loops->name) + ", seed " + std::to_string(seed) + ": " + Describe(size));
      Results<T> actual(size, gap);
      Compute(size, in, *loops, actual);
      for (size_t r = 0; r < actual.all().size(); ++r) {
        EXPECT_LT(actual.all()[r]->ErrorTo(*expected.all()[r]), tolerance) << "out, lse, dq, dk, dv: number " << r;
        EXPECT_TRUE(actual.all()[r]->GuardsStand()) << "out, lse, dq, dk, dv: number " << r;
      }
    }
  }
}

// Sums of up to 300 terms of size 1: their rounding, and in fp32 that of exp (2 ulp), with room for ten times as much.
// Packs rows of a head that is narrower than any panel over scratch full of NaN.
template <typename T, typename Held, typename Pack>
void ExpectZerosBehindTheHead(const Pack& pack) {
  constexpr int64_t kCount = 3, kHeadSize = 3;
  std::mt19937_64 random(FirstSeed());
  Rows<Held> rows(1, 1, 1, kCount, kHeadSize, /*gap=*/1);
  rows.Fill(random);
  NanScratch<T> packed(kCount * kAttentionPanel);
  pack({std::as_const(rows).Const().data, kHeadSize + 1}, kCount, kHeadSize, packed.data());
  int64_t written = 0;
  while (written < kCount * kAttentionPanel && !std::isnan(packed.data()[written])) ++written;
  const int64_t panel = written / kCount;
  ASSERT_GT(panel, kHeadSize) << "control";
  for (int64_t i = 0; i < written; ++i) {
    const double expected = i % panel < kHeadSize ? rows.At(0, 0, 0, i / panel, i % panel) : 0;
    EXPECT_EQ(static_cast<double>(packed.data()[i]), expected) << i;
  }
}

// Products with it are not stored, but computed: over what scratch had before, which may lead to subnormal numbers,
// they took a hundred times as long.
TEST(AttentionLoopsTest, WhatLiesBehindAHeadsElementsIsPackedAsZero) {
  for (const AttentionLoops* loops : SupportedAttentionLoops()) {
    SCOPED_TRACE(loops->name);
    ExpectZerosBehindTheHead<float, float>(loops->f32.pack);
    ExpectZerosBehindTheHead<float, Bf16>(loops->f32.pack_bf16);
    ExpectZerosBehindTheHead<double, double>(loops->f64.pack);
  }
}

TEST(AttentionLoopsTest, EveryInstructionSetComputesTheFormulaInDouble) {
  ExpectTheFormula<double, double>(FirstSeed(), 40, 1e-13);
}
TEST(AttentionLoopsTest, EveryInstructionSetComputesTheFormulaInSingle) {
  ExpectTheFormula<float, float>(FirstSeed() + 1, 40, 1e-5);
}
TEST(AttentionLoopsTest, EveryInstructionSetComputesTheFormulaOfKeysInBfloat16) {
  ExpectTheFormula<float, Bf16>(FirstSeed() + 2, 20, 1e-5);
}

// Scores that lie a hundred and more apart: many exponentials vanish in fp32, and none may become another number.
// Scores of 100 are exact to 1e-5, and so are their exponentials; where one key takes all, gradients cancel, which
// costs two digits more.
TEST(AttentionLoopsTest, FarScoresVanish) {
  ExpectTheFormula<float, float>(FirstSeed() + 3, 10, 1e-3, /*scale_factor=*/30);
}

// A score of 200 beside others near 0: without it in the maximum its exponential would be infinite in fp32.
TEST(AttentionLoopsTest, OneFarKeyTakesAllWhereverItLies) {
  std::mt19937_64 random(FirstSeed() + 4);
  const AttentionSize size{1, 1, 1, 5, 150, 16, false, 1};
  for (int64_t far = 0; far < size.keys; ++far) {
    Operands<float, float> in(size, /*gap=*/0, random);
    in.q.Clear();
    in.k.Clear();
    for (int64_t query = 0; query < size.queries; ++query) in.q.Add(0, 0, 0, query, 0, 1);
    in.k.Add(0, 0, 0, far, 0, 200);
    for (const AttentionLoops* loops : SupportedAttentionLoops()) {
      SCOPED_TRACE(std::string(loops->name) + ", key " + std::to_string(far));
      Results<float> actual(size, /*gap=*/0);
      Compute(size, in, *loops, actual);
      for (int64_t query = 0; query < size.queries; ++query) {
        EXPECT_EQ(actual.lse.At(0, 0, 0, query, 0), 200);
        EXPECT_EQ(actual.out.At(0, 0, 0, query, 3), in.v.At(0, 0, 0, far, 3));
      }
    }
  }
}

// Scores of 1e8 are exact to 10 in fp32, and the backward sums them in another order than the forward: what it takes
// for probabilities are none, but none of them is above 1.
TEST(AttentionLoopsTest, NoProbabilityOfTheBackwardIsAboveOne) {
  std::mt19937_64 random(FirstSeed() + 5);
  const AttentionSize size{1, 1, 1, 70, 90, 40, false, 1e7};
  const Operands<float, float> in(size, /*gap=*/0, random);
  for (const AttentionLoops* loops : SupportedAttentionLoops()) {
    SCOPED_TRACE(loops->name);
    Results<float> actual(size, /*gap=*/0);
    Compute(size, in, *loops, actual);
    for (int64_t e = 0; e < size.head_size; ++e) {
      double most = 0;
      for (int64_t query = 0; query < size.queries; ++query) most += std::fabs(in.dout.At(0, 0, 0, query, e));
      for (int64_t key = 0; key < size.keys; ++key) EXPECT_LE(std::fabs(actual.dv.At(0, 0, 0, key, e)), most * 1.0001);
    }
  }
}

TEST(AttentionLoopsTest, TheBaselineAlwaysRuns) {
  EXPECT_STREQ(SupportedAttentionLoops().back()->name, "baseline");
  EXPECT_EQ(&ChosenAttentionLoops(), SupportedAttentionLoops().front());
}

}  // namespace
}  // namespace stemma::worker::kernels
