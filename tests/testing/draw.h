// Random choices from a seed, for tests that draw their cases.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

namespace stemma::testing {

// The first of a test's seeds: STEMMA_SEED draws other cases than CI's.
inline uint32_t FirstSeed() {
  const char* seed = std::getenv("STEMMA_SEED");
  return seed == nullptr ? 0 : static_cast<uint32_t>(std::atoi(seed));
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool Chance(int percent) { return Between(1, 100) <= percent; }
  template <typename T>
  T Of(const std::vector<T>& values) {
    return values[static_cast<size_t>(Between(0, static_cast<int64_t>(values.size()) - 1))];
  }
  int64_t LogBetween(double low, double high) {
    const double u = static_cast<double>(random_() % 1'000'000) / 1e6;
    return static_cast<int64_t>(std::lround(low * std::pow(high / low, u)));
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace stemma::testing
