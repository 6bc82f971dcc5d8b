#include "tests/bench/spread.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "glog/logging.h"

namespace stemma::testing {
namespace {

double Quantile(const std::vector<double>& sorted, double part) {
  const double at = part * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], at - static_cast<double>(below));
}

}  // namespace

Spread::Spread(std::vector<double> values) {
  CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  median = Quantile(values, 0.5);
  low = Quantile(values, 0.25);
  high = Quantile(values, 0.75);
}

std::string Spread::text(int digits) const {
  char buffer[96];
  std::snprintf(buffer, sizeof(buffer), "%.*f (%.*f–%.*f)", digits, median, digits, low, digits, high);
  return buffer;
}

Spread RatioOf(const std::vector<double>& above, const std::vector<double>& below) {
  CHECK_EQ(above.size(), below.size());
  std::vector<double> ratios;
  for (size_t i = 0; i < above.size(); ++i) ratios.push_back(above[i] / below[i]);
  return Spread(std::move(ratios));
}

std::vector<std::vector<double>> InTurns(const std::vector<std::function<double()>>& ways, int rounds) {
  std::vector<std::vector<double>> seconds(ways.size());
  for (const auto& way : ways) way();
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < ways.size(); ++i) {
      const size_t turn = round % 2 == 0 ? i : ways.size() - 1 - i;
      seconds[turn].push_back(ways[turn]());
    }
  }
  return seconds;
}

}  // namespace stemma::testing
