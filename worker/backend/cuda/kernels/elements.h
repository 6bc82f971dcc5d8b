// Elements as kernels read and write them: bf16 and float in memory, float in arithmetic; V of them at once.
//
// Private to worker/backend/cuda and its tests. A pack of V > 1 elements is one or two 16-byte accesses, so its address
// must be a multiple of 16: launchers see to it (AllAligned), and the host's form dies where it is not.
#pragma once

#include <cmath>
#include <cstdint>

#include "worker/backend/device_code.h"

#if !defined(__CUDACC__)
#include <glog/logging.h>

#include <cstring>
#endif

namespace stemma::worker::cuda {

struct Bf16 {
  uint16_t bits;
};

// Elements of 16 bytes.
template <typename T>
inline constexpr int kVector = static_cast<int>(16 / sizeof(T));

// V elements as they lie in memory.
template <typename T, int V>
struct alignas(16) Pack {
  static_assert(sizeof(T) * V % 16 == 0);
  uint32_t words[sizeof(T) * V / 4];
};
template <typename T>
struct Pack<T, 1> {
  T element;
};

STEMMA_DEVICE float FloatOfBits(uint32_t bits) {
#if defined(__CUDACC__)
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}
STEMMA_DEVICE uint32_t BitsOfFloat(float x) {
#if defined(__CUDACC__)
  return __float_as_uint(x);
#else
  return __builtin_bit_cast(uint32_t, x);
#endif
}

STEMMA_DEVICE float ToFloat(float x) { return x; }
STEMMA_DEVICE float ToFloat(Bf16 x) { return FloatOfBits(static_cast<uint32_t>(x.bits) << 16); }

// Rounds both to the nearest bf16, ties to even; `low` comes first in memory. NaN stays NaN.
STEMMA_DEVICE uint32_t RoundPair(float low, float high) {
#if defined(__CUDACC__)
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  const auto round = [](float x) {
    const uint32_t bits = BitsOfFloat(x);
    return x != x ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  };
  return round(high) << 16 | round(low);
#endif
}

// Element i of a pack; i is known when the loop around it is unrolled.
template <typename T, int V>
STEMMA_DEVICE float At(const Pack<T, V>& pack, int i) {
  if constexpr (V == 1) {
    return ToFloat(pack.element);
  } else if constexpr (sizeof(T) == 4) {
    return FloatOfBits(pack.words[i]);
  } else {
    const uint32_t word = pack.words[i / 2];
    return FloatOfBits(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
  }
}

// The bits of element i as an unsigned number.
template <typename T, int V>
STEMMA_DEVICE uint32_t BitsAt(const Pack<T, V>& pack, int i) {
  if constexpr (V == 1 && sizeof(T) == 4) {
    return BitsOfFloat(pack.element);
  } else if constexpr (V == 1) {
    return pack.element.bits;
  } else if constexpr (sizeof(T) == 4) {
    return pack.words[i];
  } else {
    return i % 2 == 0 ? pack.words[i / 2] & 0xffffu : pack.words[i / 2] >> 16;
  }
}

template <typename T, int V>
STEMMA_DEVICE Pack<T, V> PackOf(const float (&x)[V]) {
  Pack<T, V> pack;
  if constexpr (V == 1 && sizeof(T) == 4) {
    pack.element = x[0];
  } else if constexpr (V == 1) {
    pack.element.bits = static_cast<uint16_t>(RoundPair(x[0], 0) & 0xffffu);
  } else if constexpr (sizeof(T) == 4) {
    STEMMA_UNROLL
    for (int i = 0; i < V; ++i) pack.words[i] = BitsOfFloat(x[i]);
  } else {
    STEMMA_UNROLL
    for (int i = 0; i < V / 2; ++i) pack.words[i] = RoundPair(x[2 * i], x[2 * i + 1]);
  }
  return pack;
}

// Reads a pack; on the host through memcpy, as the head's backward reads floats and writes bf16 in the same memory.
template <int V, typename T>
STEMMA_DEVICE Pack<T, V> Load(const T* from) {
#if defined(__CUDACC__)
  Pack<T, V> pack;
  if constexpr (V == 1) {
    pack.element = *from;
  } else {
    STEMMA_UNROLL
    for (int n = 0; n < static_cast<int>(sizeof pack / 16); ++n) {
      const uint4 words = reinterpret_cast<const uint4*>(from)[n];
      pack.words[4 * n] = words.x;
      pack.words[4 * n + 1] = words.y;
      pack.words[4 * n + 2] = words.z;
      pack.words[4 * n + 3] = words.w;
    }
  }
  return pack;
#else
  CHECK_EQ(reinterpret_cast<uintptr_t>(from) % alignof(Pack<T, V>), 0u) << "a pack must be aligned";
  Pack<T, V> pack;
  std::memcpy(&pack, from, sizeof pack);
  return pack;
#endif
}

// Where a pack is stored: in the device's memory, by an instruction of 16 bytes that no compiler splits, or in memory
// that a block's threads share.
enum class Memory { kDevice, kShared };

template <typename T, int V, Memory kMemory = Memory::kDevice>
STEMMA_DEVICE void Store(const float (&x)[V], T* to) {
  const Pack<T, V> pack = PackOf<T, V>(x);
#if defined(__CUDACC__)
  if constexpr (V == 1) {
    *to = pack.element;
  } else {
    STEMMA_UNROLL
    for (int n = 0; n < static_cast<int>(sizeof pack / 16); ++n) {
      const uint4 words =
          make_uint4(pack.words[4 * n], pack.words[4 * n + 1], pack.words[4 * n + 2], pack.words[4 * n + 3]);
      uint4* address = reinterpret_cast<uint4*>(to) + n;
      if constexpr (kMemory == Memory::kDevice) {
        __stwb(address, words);
      } else {
        *address = words;
      }
    }
  }
#else
  CHECK_EQ(reinterpret_cast<uintptr_t>(to) % alignof(Pack<T, V>), 0u) << "a pack must be aligned";
  std::memcpy(to, &pack, sizeof pack);
#endif
}

// e^x to a few ulp of e^x near 0 and |x| 2^-24 relative away from it; 0 far below, infinity far above.
STEMMA_DEVICE float Exp(float x) {
#if defined(__CUDACC__)
  return __expf(x);
#else
  return std::exp(x);
#endif
}

STEMMA_DEVICE float Sigmoid(float x) {
#if defined(__CUDACC__)
  return __fdividef(1.0f, 1.0f + Exp(-x));
#else
  return 1.0f / (1.0f + Exp(-x));
#endif
}

// Whether packs can be read and written at all of these addresses; null ones are absent.
template <typename... Pointers>
bool AllAligned(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace stemma::worker::cuda
