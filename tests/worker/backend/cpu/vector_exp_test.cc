// e^x as straight-line code, against libm in fp64: over every 997th float.
#include "worker/backend/cpu/vector_exp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace stemma::worker::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

double ErrorInUlp(float value, double exact) {
  const auto nearest = static_cast<float>(exact);
  return std::abs(value - exact) / (std::nextafter(nearest, kInf) - nearest);
}

// Calls use(x) with floats of every magnitude and sign between the bounds.
template <typename Use>
void ForFloats(float low, float high, const Use& use) {
  for (uint64_t bits = 0; bits <= 0xffffffff; bits += 997) {
    const auto x = __builtin_bit_cast(float, static_cast<uint32_t>(bits));
    if (x >= low && x <= high) use(x);
  }
}

TEST(VectorExpTest, IsRightToTwoUlp) {
  double worst = 0;
  ForFloats(-87.0f, 88.3f, [&](float x) {
    worst = std::max(worst, ErrorInUlp(VectorExp(x), std::exp(double{x})));
    EXPECT_EQ(VectorExp(x), VectorExpBelow89(x));
  });
  EXPECT_LE(worst, 2.0);  // what its header says
  EXPECT_GT(worst, 0.5) << "nothing was compared";
}

TEST(VectorExpTest, WhatIsFarBelowIsZeroAndNeverDenormal) {
  ForFloats(-kInf, 0.0f, [](float x) {
    const float y = VectorExp(x);
    ASSERT_TRUE(y == 0 || y >= std::numeric_limits<float>::min()) << x << " gives " << y;
  });
  EXPECT_EQ(VectorExp(-kInf), 0);
  EXPECT_EQ(VectorExp(kInf), kInf);
}

// With any payload: its low bits are those of which the code makes an exponent.
TEST(VectorExpTest, NaNStaysNaN) {
  for (uint32_t payload = 0; payload < 0x400000; payload += 4093) {
    const auto nan = __builtin_bit_cast(float, 0x7fc00000u | payload);
    ASSERT_TRUE(std::isnan(VectorExp(nan)) && std::isnan(VectorExpBelow89(-nan))) << payload;
  }
}

}  // namespace
}  // namespace stemma::worker::kernels
