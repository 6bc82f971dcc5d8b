// e^x as straight-line code, so that loops around it vectorise; libm's does not. Private to worker/backend/cpu.
//
// Everything here has internal linkage: a file built for another instruction set keeps a copy of its own.
#pragma once

#include <cstdint>

namespace stemma::worker::kernels {

// Exact to about 2 ulp for -87 <= x <= 88.3: x = n ln2 + r with |r| <= ln2/2, where ln2 is the sum of two numbers of
// which n times the first is exact; a polynomial for e^r, fitted to the least relative error; times 2^n. Below that 0,
// never a denormal, which would slow every product with it. NaN stays NaN. For x <= 89 only. Float and Bits: float and
// uint32_t, or vectors of them.
template <typename Float, typename Bits>
static inline Float ExpBelow89Of(Float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer
  const Float shifted = x * 1.44269504088896341f + kRound;
  const Float n = shifted - kRound;
  Float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Float q = r * 1.38145401e-3f + 8.36874514e-3f;
  q = q * r + 4.16683908e-2f;
  q = q * r + 1.66665204e-1f;
  q = q * r + 0.49999993f;
  const Float p = (q * r + 1.0f) * r + 1.0f;
  constexpr uint32_t kExponentOfOne = (127u - __builtin_bit_cast(uint32_t, kRound)) << 23;
  const Float power = __builtin_bit_cast(Float, (__builtin_bit_cast(Bits, shifted) << 23) + kExponentOfOne);
  return x < -87.0f ? Float{} : p * power;
}

static inline float VectorExpBelow89(float x) { return ExpBelow89Of<float, uint32_t>(x); }

// The same for every x: infinity above.
static inline float VectorExp(float x) { return VectorExpBelow89(x > 89.0f ? 89.0f : x); }

static inline double VectorExpBelow89(double x) { return __builtin_exp(x); }
static inline double VectorExp(double x) { return __builtin_exp(x); }

}  // namespace stemma::worker::kernels
