// Non-negative least squares of a few unknowns, and its robust form. Pure.
#pragma once

#include <cstddef>
#include <vector>

namespace stemma::server {

struct Equation {
  std::vector<double> factors;  // one per unknown
  double value = 0;             // factors · unknowns
};

// min over x >= 0 of sum (factors · x - value)^2 + ridge · sum (x - 1)^2: unknowns that no equation tells apart
// stay near 1 together. ridge > 0.
std::vector<double> NonNegativeLeastSquares(const std::vector<Equation>& equations, size_t unknowns, double ridge);

// The same with outliers weighed down: an equation whose residual passes `tolerance` counts as if it were just that far
// off (Huber), by reweighting.
std::vector<double> RobustLeastSquares(const std::vector<Equation>& equations, size_t unknowns, double ridge,
                                       double tolerance);

}  // namespace stemma::server
