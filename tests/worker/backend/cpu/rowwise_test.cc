// Every instruction set that this machine can run gives the results of the baseline build, for each kernel, type and
// odd width, and writes nothing outside its rows. The formulas themselves are checked by the tests of worker/ops.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

#include "worker/backend/cpu/rowwise_table.h"

namespace stemma::worker::kernels {
namespace {

float ToDouble(Bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
double ToDouble(double x) { return x; }

// Truncates: inputs need no correct rounding.
void Assign(Bf16& out, double x) {
  const float value = static_cast<float>(x);
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  out.bits = static_cast<uint16_t>(bits >> 16);
}
void Assign(float& out, double x) { out = static_cast<float>(x); }
void Assign(double& out, double x) { out = x; }

template <typename T>
std::vector<T> Normal(int64_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<T> values(count);
  for (T& value : values) Assign(value, normal(engine));
  return values;
}

constexpr int64_t kGuard = 24;
constexpr double kGuardValue = 12345;

// An output with guards on both sides.
template <typename T>
struct Guarded {
  explicit Guarded(int64_t count) : values(count + 2 * kGuard) {
    for (T& value : values) Assign(value, kGuardValue);
    for (int64_t i = 0; i < count; ++i) Assign(data()[i], 0);
  }
  T* data() { return values.data() + kGuard; }
  void AppendTo(std::vector<double>& all) const {
    T guard;
    Assign(guard, kGuardValue);
    for (int64_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(ToDouble(values[i]), ToDouble(guard));
      EXPECT_EQ(ToDouble(values[values.size() - 1 - i]), ToDouble(guard));
    }
    for (size_t i = kGuard; i + kGuard < values.size(); ++i) all.push_back(ToDouble(values[i]));
  }
  std::vector<T> values;
};

template <typename T>
const RowTable<T>& RowsOf(const KernelTable& table) {
  if constexpr (std::is_same_v<T, float>) {
    return table.f32;
  } else if constexpr (std::is_same_v<T, double>) {
    return table.f64;
  } else {
    return table.bf16;
  }
}

template <typename T>
std::vector<double> RunNorm(const RowTable<T>& rows, int64_t width, bool with_residual) {
  constexpr int64_t kRows = 5;
  const auto x = Normal<T>(kRows * width, 1), weight = Normal<T>(width, 2), dy = Normal<T>(kRows * width, 3);
  const auto residual = Normal<T>(kRows * width, 4);
  Guarded<T> y(kRows * width), dx(kRows * width);
  Guarded<Acc<T>> rstd(kRows), dweight(width);
  rows.rms_norm_forward({x.data(), weight.data(), y.data(), rstd.data(), kRows, width, 1e-6}, 1, kRows);
  Assign(rstd.data()[0], 1);
  rows.rms_norm_backward({dy.data(), x.data(), rstd.data(), weight.data(), with_residual ? residual.data() : nullptr,
                          dx.data(), nullptr, kRows, width},
                         0, kRows, dweight.data());
  std::vector<double> all;
  y.AppendTo(all);
  rstd.AppendTo(all);
  dx.AppendTo(all);
  dweight.AppendTo(all);
  return all;
}

template <typename T>
std::vector<double> RunSwiglu(const RowTable<T>& rows, int64_t width) {
  constexpr int64_t kRows = 3;
  const auto x = Normal<T>(kRows * 2 * width, 5), dy = Normal<T>(kRows * width, 6);
  Guarded<T> y(kRows * width), dx(kRows * 2 * width);
  rows.swiglu_forward({x.data(), y.data(), kRows, width}, 0, kRows);
  rows.swiglu_backward({dy.data(), x.data(), dx.data(), kRows, width}, 0, kRows);
  std::vector<double> all;
  y.AppendTo(all);
  dx.AppendTo(all);
  return all;
}

template <typename T, typename G>
std::vector<double> RunQkv(const RowTable<T>& rows, int64_t size, bool norm) {
  constexpr int64_t kRows = 4, kHeads = 3, kKvHeads = 1, kPositions = 9;
  const int64_t columns = (kHeads + 2 * kKvHeads) * size;
  const auto qkv = Normal<T>(kRows * columns, 7), dq = Normal<T>(kHeads * kRows * size, 8);
  const auto dk = Normal<G>(kKvHeads * kRows * size, 9), dv = Normal<G>(kKvHeads * kRows * size, 10);
  const auto weight = Normal<T>(size, 11);
  const auto cos = Normal<Acc<T>>(kPositions * size / 2, 12), sin = Normal<Acc<T>>(kPositions * size / 2, 13);
  const std::vector<int64_t> positions = {8, 0, 3, 3};
  const T* w = norm ? weight.data() : nullptr;
  Guarded<T> q(kHeads * kRows * size), k(kKvHeads * kRows * size), v(kKvHeads * kRows * size), dqkv(kRows * columns);
  Guarded<Acc<T>> rstd(kRows * (kHeads + kKvHeads)), partial(2 * size);
  rows.qkv_forward({qkv.data(), positions.data(), cos.data(), sin.data(), w, w, 1e-6, q.data(), k.data(), v.data(),
                    rstd.data(), kRows, kHeads, kKvHeads, size},
                   0, kRows);
  const QkvBackwardArgs<T, G> args{{dq.data(), kRows * size, size},
                                   {dk.data(), kRows * size, size},
                                   {dv.data(), kRows * size, size},
                                   positions.data(),
                                   cos.data(),
                                   sin.data(),
                                   w,
                                   w,
                                   qkv.data(),
                                   rstd.data(),
                                   nullptr,
                                   nullptr,
                                   dqkv.data(),
                                   kRows,
                                   kHeads,
                                   kKvHeads,
                                   size};
  if constexpr (std::is_same_v<T, G>) {
    rows.qkv_backward(args, 0, kRows, partial.data());
  } else {
    rows.qkv_backward_acc(args, 0, kRows, partial.data());
  }
  std::vector<double> all;
  for (const Guarded<T>* output : {&q, &k, &v, &dqkv}) output->AppendTo(all);
  rstd.AppendTo(all);
  partial.AppendTo(all);
  return all;
}

template <typename T>
std::vector<double> RunMerge(const RowTable<T>& rows, int64_t size, bool with_ancestor) {
  using A = Acc<T>;
  constexpr int64_t kRows = 6, kKvHeads = 2, kGroup = 3, kHeads = kKvHeads * kGroup;
  const auto own = Normal<A>(kHeads * kRows * size, 14), ancestor = Normal<A>(kHeads * kRows * size, 15);
  auto own_lse = Normal<A>(kHeads * kRows, 16), ancestor_lse = Normal<A>(kHeads * kRows, 17);
  own_lse[0] += 500;  // one part's weight vanishes
  ancestor_lse[1] += 500;
  Guarded<T> o(kRows * kHeads * size);
  Guarded<A> lse(kHeads * kRows);
  // own: rows inside groups inside kv heads; ancestor: groups inside rows inside kv heads.
  const AttentionPart<A> own_part{own.data(),     kGroup * kRows * size, kRows * size, size,
                                  own_lse.data(), kGroup * kRows,        kRows,        1};
  AttentionPart<A> ancestor_part{ancestor.data(),     kGroup * kRows * size, size, kGroup * size,
                                 ancestor_lse.data(), kGroup * kRows,        1,    kGroup};
  if (!with_ancestor) ancestor_part = {};
  rows.merge({ancestor_part, own_part, o.data(), lse.data(), kRows, kRows, kKvHeads, kGroup, size}, 0, kRows);
  std::vector<double> all;
  o.AppendTo(all);
  lse.AppendTo(all);
  return all;
}

template <typename T>
std::vector<double> RunCombine(const RowTable<T>& rows, int64_t size) {
  using A = Acc<T>;
  constexpr int64_t kRows = 5, kKvHeads = 2, kGroup = 3, kHeads = kKvHeads * kGroup;
  const auto first = Normal<A>(kHeads * kRows * size, 19), second = Normal<A>(kHeads * kRows * size, 20);
  const HeadGradients<A> first_part{first.data(), kGroup * kRows * size, size, kGroup * size};
  const HeadGradients<A> second_part{second.data(), kGroup * kRows * size, kRows * size, size};
  std::vector<double> all;
  for (const bool add : {false, true}) {
    Guarded<T> out(kHeads * kRows * size);
    rows.combine_heads(
        {first_part, add ? second_part : HeadGradients<A>{}, out.data(), kRows * size, kRows, kKvHeads, kGroup, size},
        0, kRows);
    out.AppendTo(all);
  }
  return all;
}

template <typename T>
std::vector<double> RunEmbedding(const RowTable<T>& rows, int64_t width) {
  const std::vector<int64_t> tokens = {2, 0, 2, 1, -1};
  const auto dx = Normal<T>(5 * width, 18);
  Guarded<Acc<T>> dweight(3 * width);
  rows.embedding_backward({tokens.data(), dx.data(), dweight.data(), 5, width}, 0, width);
  std::vector<double> all;
  dweight.AppendTo(all);
  return all;
}

template <typename T>
std::vector<double> RunAll(const KernelTable& table, int64_t width) {
  const RowTable<T>& rows = RowsOf<T>(table);
  std::vector<double> all;
  const auto append = [&](const std::vector<double>& values) { all.insert(all.end(), values.begin(), values.end()); };
  for (const bool option : {false, true}) {
    append(RunNorm<T>(rows, width, option));
    append(RunQkv<T, T>(rows, 2 * width, option));
    append(RunQkv<T, Acc<T>>(rows, 2 * width, option));
    append(RunMerge<T>(rows, width, option));
  }
  append(RunCombine<T>(rows, width));
  append(RunSwiglu<T>(rows, width));
  append(RunEmbedding<T>(rows, width));
  return all;
}

// Values are around 1, sums of some hundred; only the order of sums and fused multiply-adds differ.
template <typename T>
void ExpectTablesAgree(double tolerance) {
  for (const int64_t width : {1, 3, 8, 16, 31, 33, 65, 130}) {
    const std::vector<double> expected = RunAll<T>(isa_baseline::kTable, width);
    for (const KernelTable* table : SupportedTables()) {
      const std::vector<double> actual = RunAll<T>(*table, width);
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t i = 0; i < actual.size(); ++i) {
        ASSERT_NEAR(actual[i], expected[i], tolerance * std::max(1.0, std::fabs(expected[i])))
            << table->name << ", width " << width << ", value " << i;
      }
    }
  }
}

TEST(RowwiseTest, EveryInstructionSetAgreesInDouble) { ExpectTablesAgree<double>(1e-13); }
TEST(RowwiseTest, EveryInstructionSetAgreesInSingle) { ExpectTablesAgree<float>(2e-5); }
TEST(RowwiseTest, EveryInstructionSetAgreesInBfloat16) { ExpectTablesAgree<Bf16>(1e-2); }  // one ulp: 2^-7

TEST(RowwiseTest, TheBaselineAlwaysRuns) {
  EXPECT_STREQ(SupportedTables().back()->name, "baseline");
  EXPECT_EQ(&ChosenTable(), SupportedTables().front());
}

// bf16 stores round to nearest even: halfway cases go to the even neighbour, NaN stays NaN.
TEST(RowwiseTest, Bfloat16RoundsToNearestEven) {
  const std::vector<float> own = {1.00390625f /* halfway, even below */, 1.01171875f /* halfway, even above */,
                                  1.004f /* above halfway */, std::nanf("")};
  const std::vector<uint16_t> expected = {0x3f80, 0x3f82, 0x3f81, 0x7fc0};
  const std::vector<float> lse = {0};
  for (const KernelTable* table : SupportedTables()) {
    std::vector<Bf16> out(4);
    std::vector<float> lse_out(1);
    const AttentionPart<float> part{own.data(), 4, 4, 4, lse.data(), 1, 1, 1};
    table->bf16.merge({{}, part, out.data(), lse_out.data(), 1, 1, 1, 1, 4}, 0, 1);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(out[i].bits, expected[i]) << table->name << " " << i;
  }
}

}  // namespace
}  // namespace stemma::worker::kernels
