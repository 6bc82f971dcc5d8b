#include "common/base/random_values.h"

namespace stemma {
namespace {

// FNV-1a.
uint64_t HashOf(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

uint64_t Mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

RandomValues::RandomValues(uint64_t seed, std::string_view name) : state_(Mixed(Mixed(seed) ^ HashOf(name))) {}

uint64_t RandomValues::NextInteger() {
  state_ += 0x9e3779b97f4a7c15;
  return Mixed(state_);
}

double RandomValues::NextNormal() {
  int64_t sum = 0;
  for (int draw = 0; draw < 3; ++draw) {
    const uint64_t bits = NextInteger();
    sum += static_cast<int64_t>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
  }
  return static_cast<double>(sum - 6 * 0xffff) / 65536.0;
}

}  // namespace stemma
