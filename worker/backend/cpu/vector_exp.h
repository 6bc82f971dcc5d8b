// e^x as straight-line code, so that loops around it vectorise; libm's does not. Private to worker/backend/cpu.
//
// Everything here has internal linkage: a file built for another instruction set keeps a copy of its own.
#pragma once

#include <cstdint>

namespace stemma::worker::kernels {

// Exact to about 2 ulp for -87 <= x <= 88.3: x = n ln2 + r with |r| <= ln2/2, a polynomial for e^r (Cephes expf), times
// 2^n. Below that 0, never a denormal, which would slow every product with it. NaN stays NaN. For x <= 89 only.
static inline float VectorExpBelow89(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const int32_t exponent = __builtin_bit_cast(int32_t, shifted) - __builtin_bit_cast(int32_t, kRound);
  const float result = p * __builtin_bit_cast(float, (exponent + 127) << 23);
  return x < -87.0f ? 0.0f : result;
}

// The same for every x: infinity above.
static inline float VectorExp(float x) { return VectorExpBelow89(x > 89.0f ? 89.0f : x); }

static inline double VectorExpBelow89(double x) { return __builtin_exp(x); }
static inline double VectorExp(double x) { return __builtin_exp(x); }

}  // namespace stemma::worker::kernels
