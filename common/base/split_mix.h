// SplitMix64 (Steele, Lea, Flood 2014) and FNV-1a: integers from a seed and a name, the same on every machine. What
// they give is part of the product: mini-batches of a shuffled epoch, and the weights of `stemma model init`.
#pragma once

#include <cstdint>
#include <string_view>

namespace stemma {

// The generator's output function: a bijection whose every output bit depends on every input bit.
constexpr uint64_t MixedBits(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

class SplitMix64 {
 public:
  constexpr explicit SplitMix64(uint64_t state) : state_(state) {}
  constexpr uint64_t Next() { return MixedBits(state_ += 0x9e3779b97f4a7c15); }

 private:
  uint64_t state_;
};

constexpr uint64_t Fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace stemma
