#include "server/planner/least_squares.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace stemma::server {
namespace {

constexpr double kGradientMin = 1e-12;  // of unknowns that are about 1
constexpr int kReweightings = 12;

double Product(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

using Matrix = std::vector<std::vector<double>>;

// gram · x = right over the unknowns `free`, by elimination (symmetric positive definite: no pivoting); the others are
// 0.
std::vector<double> SolveFree(const Matrix& gram, const std::vector<double>& right, const std::vector<size_t>& free) {
  const size_t n = free.size();
  Matrix rows(n, std::vector<double>(n + 1));
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) rows[i][j] = gram[free[i]][free[j]];
    rows[i][n] = right[free[i]];
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = i + 1; k < n; ++k) {
      const double factor = rows[k][i] / rows[i][i];
      for (size_t j = i; j <= n; ++j) rows[k][j] -= factor * rows[i][j];
    }
  }
  std::vector<double> x(right.size(), 0.0);
  for (size_t i = n; i-- > 0;) {
    double value = rows[i][n];
    for (size_t j = i + 1; j < n; ++j) value -= rows[i][j] * x[free[j]];
    x[free[i]] = value / rows[i][i];
  }
  return x;
}

// The unknown outside `free` whose growth lowers the sum most; x's size if there is none.
size_t Steepest(const Matrix& gram, const std::vector<double>& right, const std::vector<double>& x,
                const std::vector<size_t>& free) {
  size_t best = x.size();
  double steepest = kGradientMin;
  for (size_t j = 0; j < x.size(); ++j) {
    const double gradient = right[j] - Product(gram[j], x);
    if (gradient <= steepest || std::find(free.begin(), free.end(), j) != free.end()) continue;
    best = j;
    steepest = gradient;
  }
  return best;
}

// Moves x towards `target` until the first unknown reaches 0, and takes those at 0 out of `free`.
void MoveToBound(const std::vector<double>& target, std::vector<double>& x, std::vector<size_t>& free) {
  double part = 1;
  for (const size_t j : free) {
    if (target[j] <= 0) part = std::min(part, x[j] / (x[j] - target[j]));
  }
  for (const size_t j : free) x[j] += part * (target[j] - x[j]);
  std::erase_if(free, [&](size_t j) {
    if (target[j] > 0 || x[j] > kGradientMin) return false;
    x[j] = 0;
    return true;
  });
}

// min x·gram·x / 2 - right·x over x >= 0: Lawson and Hanson's active set.
std::vector<double> SolveNonNegative(const Matrix& gram, const std::vector<double>& right) {
  std::vector<double> x(right.size(), 0.0);
  std::vector<size_t> free;
  for (size_t round = 0; round < 3 * right.size(); ++round) {  // more than Lawson and Hanson ever saw
    const size_t next = Steepest(gram, right, x, free);
    if (next == x.size()) break;
    free.push_back(next);
    std::vector<double> target = SolveFree(gram, right, free);
    while (std::any_of(free.begin(), free.end(), [&](size_t j) { return target[j] <= 0; })) {
      MoveToBound(target, x, free);
      target = SolveFree(gram, right, free);
    }
    x = std::move(target);
  }
  return x;
}

}  // namespace

std::vector<double> NonNegativeLeastSquares(const std::vector<Equation>& equations, size_t unknowns, double ridge) {
  Matrix gram(unknowns, std::vector<double>(unknowns, 0.0));
  std::vector<double> right(unknowns, ridge);
  for (size_t j = 0; j < unknowns; ++j) gram[j][j] = ridge;
  for (const Equation& equation : equations) {
    for (size_t j = 0; j < unknowns; ++j) {
      right[j] += equation.factors[j] * equation.value;
      for (size_t k = 0; k < unknowns; ++k) gram[j][k] += equation.factors[j] * equation.factors[k];
    }
  }
  return SolveNonNegative(gram, right);
}

std::vector<double> RobustLeastSquares(const std::vector<Equation>& equations, size_t unknowns, double ridge,
                                       double tolerance) {
  std::vector<double> x = NonNegativeLeastSquares(equations, unknowns, ridge);
  for (int i = 0; i < kReweightings; ++i) {
    std::vector<Equation> weighted = equations;
    for (Equation& equation : weighted) {
      const double residual = std::abs(Product(equation.factors, x) - equation.value);
      if (residual <= tolerance) continue;
      const double weight = std::sqrt(tolerance / residual);
      for (double& factor : equation.factors) factor *= weight;
      equation.value *= weight;
    }
    x = NonNegativeLeastSquares(weighted, unknowns, ridge);
  }
  return x;
}

}  // namespace stemma::server
