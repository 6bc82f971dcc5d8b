// Drawn clusters and groups for the planner's tests: ragged, of one or several prefixes, reused and dense.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

#include "server/planner/cost_model.h"

namespace stemma::testing {

// Draws sizes whose logarithm is even: short and long ones are as frequent.
inline int64_t DrawSize(int64_t low, int64_t high, std::mt19937_64& random) {
  std::uniform_real_distribution<double> log_size(std::log(static_cast<double>(low)),
                                                  std::log(static_cast<double>(high)));
  return static_cast<int64_t>(std::exp(log_size(random)));
}

// Draws lengths as rollouts have them: most near the median, a few much longer.
inline double DrawLognormal(double median, double sigma, std::mt19937_64& random) {
  return std::lognormal_distribution<double>(std::log(median), sigma)(random);
}

inline server::ClusterShape DrawCluster(int groups, bool reuse, std::mt19937_64& random) {
  server::ClusterShape cluster;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t prefix_rows = DrawSize(8, 3000 / groups, random);
    if (reuse) cluster.prefix_rows.push_back(prefix_rows);
    const int64_t members = DrawSize(1, 17, random);
    for (int64_t i = 0; i < members; ++i) {
      cluster.members.push_back(
          {.rows = DrawSize(1, 1500, random), .prefix_rows = prefix_rows, .dense = !reuse, .prefix = reuse ? g : 0});
    }
  }
  return cluster;
}

}  // namespace stemma::testing
