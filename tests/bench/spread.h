// Measured values in turns: their middle and how far they spread. For benchmarks only.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/testing/namespaces.h"

namespace stemma::testing {

// Median and quartiles of one value or more; between neighbours where a quarter falls between two.
struct Spread {
  explicit Spread(std::vector<double> values);
  std::string text(int digits) const;  // "1.02 (1.01–1.04)"
  double median = 0, low = 0, high = 0;
};

// Divides runs in turns, each by the other one of its round.
Spread RatioOf(const std::vector<double>& above, const std::vector<double>& below);

// Seconds of each way, one for each round, the first run of each left out; every other round in the other order. Ways
// are short and next to each other in time: what else the machine does changes within seconds.
std::vector<std::vector<double>> InTurns(const std::vector<std::function<double()>>& ways, int rounds);

}  // namespace stemma::testing
