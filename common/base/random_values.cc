#include "common/base/random_values.h"

namespace stemma {

RandomValues::RandomValues(uint64_t seed, std::string_view name)
    : integers_(MixedBits(MixedBits(seed) ^ Fnv1a(name))) {}

double RandomValues::NextNormal() {
  int64_t sum = 0;
  for (int draw = 0; draw < 3; ++draw) {
    const uint64_t bits = NextInteger();
    sum += static_cast<int64_t>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
  }
  return static_cast<double>(sum - 6 * 0xffff) / 65536.0;
}

}  // namespace stemma
