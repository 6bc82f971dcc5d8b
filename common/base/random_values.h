// Random numbers that are the same on every machine: splitmix64, and a normal distribution made of integer sums.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/split_mix.h"

namespace stemma {

class RandomValues {
 public:
  // A stream of its own for each (seed, name).
  RandomValues(uint64_t seed, std::string_view name);

  uint64_t NextInteger() { return integers_.Next(); }
  // Mean 0, variance 1 (to 1e-9), within +-6: twelve uniform 16-bit integers, summed; exact in a double.
  double NextNormal();

 private:
  SplitMix64 integers_;
};

}  // namespace stemma
