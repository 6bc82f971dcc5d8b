// A router's choice and the rows' way to their experts, against fp64 autograd of the plain formula. Sizes are drawn.
#include "worker/ops/routing.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "tests/testing/backends.h"
#include "tests/testing/draw.h"
#include "tests/testing/tensors.h"
#include "worker/ops/grouped_linear.h"

namespace stemma::worker {
namespace {

using testing::AutogradOf;
using testing::Draw;
using testing::kExact;
using testing::Leaf;
using testing::Random;
using testing::RelativeError;

Experts DrawExperts(Draw& draw) {
  Experts experts;
  experts.count = draw.Between(1, 12);
  experts.per_token = draw.Between(1, experts.count);
  experts.weights_sum_to_one = draw.Chance(50);
  return experts;
}

// The weights of the chosen experts, from the definition.
at::Tensor PlainWeights(const at::Tensor& logits_TX, const at::Tensor& experts_TU, const Experts& experts) {
  const at::Tensor chosen_TU = logits_TX.softmax(1).gather(1, experts_TU);
  return experts.weights_sum_to_one ? chosen_TU / chosen_TU.sum(1, /*keepdim=*/true) : chosen_TU;
}

TEST(RoutingTest, WeightsAndTheirGradientAgreeWithAutograd) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Draw draw(seed);
    Random random(seed);
    const Experts experts = DrawExperts(draw);
    const int64_t rows = draw.Between(0, 30);
    const at::Tensor logits = random.Normal({rows, experts.count}) * 3;
    const at::Tensor dweights = random.Normal({rows, experts.per_token}), leaf = Leaf(logits);
    const Routing routing = RouteForward(logits, experts);
    const at::Tensor plain = PlainWeights(leaf, routing.experts_TU, experts);
    const at::Tensor dlogits = RouteBackward(routing, dweights, experts);
    EXPECT_EQ(dlogits.sizes(), logits.sizes());
    if (rows == 0) continue;
    EXPECT_LT(RelativeError(routing.weights_TU, plain), kExact) << "seed " << seed;
    const at::Tensor expected = AutogradOf({plain}, {dweights}, {leaf})[0];
    // All experts' weights together, where they sum to one, and one expert's alone are constants in a shift.
    const double scale = dweights.abs().max().item<double>();
    EXPECT_LT((dlogits - expected).abs().max().item<double>(), kExact * scale) << "seed " << seed;
  }
}

TEST(RoutingTest, TheMostProbableExpertsAreChosenTheMostProbableFirst) {
  Random random(3);
  const at::Tensor logits = random.Normal({50, 9});
  const Routing routing = RouteForward(logits, {.count = 9, .per_token = 4});
  const at::Tensor order = at::argsort(logits, /*dim=*/1, /*descending=*/true);
  EXPECT_TRUE(at::equal(routing.experts_TU, order.narrow(1, 0, 4)));
}

// bf16 has few numbers: rounded products are often equal, and what is chosen then may not depend on a library.
TEST(RoutingTest, OfEqualProductsTheLowestNumbersAreChosen) {
  Random random(7);
  int64_t ties = 0;
  const at::Tensor logits = (random.Normal({200, 16}) * 2).round();
  const Routing routing = RouteForward(logits, {.count = 16, .per_token = 4});
  for (int64_t row = 0; row < 200; ++row) {
    std::vector<int64_t> order(16);
    std::iota(order.begin(), order.end(), 0);
    const auto value = [&](int64_t e) { return logits[row][e].item<double>(); };
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return value(a) > value(b); });
    for (int64_t u = 0; u < 4; ++u)
      EXPECT_EQ(routing.experts_TU[row][u].item<int64_t>(), order[static_cast<size_t>(u)]);
    ties += value(order[3]) == value(order[4]) ? 1 : 0;
  }
  EXPECT_GT(ties, 50);
}

// What docs/moe.md says of ties: 128 products of which 8 are chosen, of random rows.
TEST(RoutingTest, Bf16OftenLeavesTheChoiceToTheOrderOfExperts) {
  Random random(8);
  constexpr int64_t kRows = 3000;
  const Experts experts = {.count = 128, .per_token = 8};
  const at::Tensor exact = random.Normal({kRows, experts.count}), rounded = exact.to(at::kBFloat16);
  const at::Tensor sorted = std::get<0>(rounded.to(at::kDouble).sort(1, /*descending=*/true));
  const auto ties = (sorted.select(1, 7) == sorted.select(1, 8)).sum().item<int64_t>();
  const auto chosen = [&](const at::Tensor& logits) {
    return std::get<0>(RouteForward(logits, experts).experts_TU.sort(1));
  };
  const auto others = (chosen(exact) != chosen(rounded)).any(1).sum().item<int64_t>();
  EXPECT_NEAR(static_cast<double>(ties) / kRows, 1.0 / 20, 0.02);
  EXPECT_NEAR(static_cast<double>(others) / kRows, 1.0 / 35, 0.012);
}

// A row's choice is its own: alone it is what it is among others.
TEST(RoutingTest, ARowIsRoutedAsItIsAlone) {
  Random random(4);
  const Experts experts = {.count = 7, .per_token = 3, .weights_sum_to_one = false};
  const at::Tensor logits = random.Normal({20, 7});
  logits.select(0, 11).fill_(0.5);  // all are as probable
  const Routing all = RouteForward(logits, experts);
  for (int64_t row = 0; row < 20; ++row) {
    const Routing one = RouteForward(logits.narrow(0, row, 1), experts);
    EXPECT_TRUE(at::equal(one.experts_TU[0], all.experts_TU[row])) << row;
    EXPECT_TRUE(at::equal(one.weights_TU[0], all.weights_TU[row])) << row;
  }
}

TEST(RoutingTest, LowerPrecisionsAreRoutedInFp32) {
  Random random(5);
  const at::Tensor logits = random.Normal({40, 8}).to(at::kBFloat16);
  const Experts experts = {.count = 8, .per_token = 3};
  const Routing routing = RouteForward(logits, experts);
  EXPECT_EQ(routing.weights_TU.scalar_type(), at::kFloat);
  const at::Tensor plain = PlainWeights(logits.to(at::kDouble), routing.experts_TU, experts);
  EXPECT_LT(RelativeError(routing.weights_TU, plain), 1e-6);  // a few roundings of 6e-8
}

TEST(RoutingTest, ANotANumberReachesTheWeights) {
  const at::Tensor logits = at::zeros({2, 4}, at::kFloat);
  logits[1][2] = std::numeric_limits<float>::quiet_NaN();
  const Routing routing = RouteForward(logits, {.count = 4, .per_token = 2});
  EXPECT_FALSE(routing.weights_TU[0].isnan().any().item<bool>());
  EXPECT_TRUE(routing.weights_TU[1].isnan().all().item<bool>());
  EXPECT_LT(routing.experts_TU.max().item<int64_t>(), 4);
}

// Whom each of some rows chose, of up to nine experts.
at::Tensor DrawChoices(Draw& draw, int64_t fewest_rows = 0) {
  const int64_t rows = draw.Between(fewest_rows, 25), count = draw.Between(1, 9), per_token = draw.Between(1, count);
  at::Tensor experts = at::empty({rows, per_token}, at::kLong);
  for (int64_t t = 0; t < rows; ++t) experts[t] = at::randperm(count, at::kLong).narrow(0, 0, per_token);
  return experts;
}

// All of the experts, or some.
ExpertRange DrawRange(Draw& draw, int64_t count) {
  if (draw.Chance(40)) return {0, count};
  const int64_t begin = draw.Between(0, count - 1);
  return {begin, draw.Between(1, count - begin)};
}

TEST(DispatchTest, EachAssignmentHasAPlaceAmongItsExperts) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Draw draw(seed);
    const at::Tensor experts = DrawChoices(draw);
    const int64_t rows = experts.size(0), per_token = experts.size(1), count = 1 + draw.Between(per_token, 9);
    const ExpertRange here = DrawRange(draw, count);
    const Dispatch dispatch = MakeDispatch(experts, here);
    ASSERT_EQ(dispatch.ends.size(), static_cast<size_t>(here.count));
    ASSERT_TRUE(std::is_sorted(dispatch.ends.begin(), dispatch.ends.end()));
    int64_t others = 0;
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t u = 0; u < per_token; ++u) {
        const auto place = dispatch.places_TU[t][u].item<int64_t>();
        const auto expert = experts[t][u].item<int64_t>() - here.begin;
        if (expert < 0 || expert >= here.count) {
          ++others;
          EXPECT_EQ(place, dispatch.assignments());
          continue;
        }
        EXPECT_EQ(dispatch.rows_A[place].item<int64_t>(), t);
        EXPECT_EQ(dispatch.choices_A[place].item<int64_t>(), t * per_token + u);
        EXPECT_LT(place, dispatch.ends[static_cast<size_t>(expert)]);
        EXPECT_GE(place, expert == 0 ? 0 : dispatch.ends[static_cast<size_t>(expert) - 1]);
      }
    }
    EXPECT_EQ(dispatch.assignments() + others, rows * per_token);
    EXPECT_EQ(dispatch.zero_rows(), others > 0 ? 1 : 0);
    // Rows of one expert stand in their order: a sum over them is the same whatever else is routed.
    for (int64_t e = 0, begin = 0; e < here.count; begin = dispatch.ends[static_cast<size_t>(e++)]) {
      const at::Tensor of_expert = dispatch.rows_A.slice(0, begin, dispatch.ends[static_cast<size_t>(e)]);
      EXPECT_TRUE(at::equal(of_expert, std::get<0>(of_expert.sort()))) << "seed " << seed << ", expert " << e;
    }
  }
}

TEST(GroupedLinearTest, ProductsAndTheirGradientsAreEachExpertsOwn) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Draw draw(seed);
    Random random(seed);
    const int64_t count = draw.Between(1, 6), inputs = draw.Between(1, 20), outputs = draw.Between(1, 20);
    std::vector<int64_t> ends;
    for (int64_t e = 0, end = 0; e < count; ++e) ends.push_back(end += draw.Chance(30) ? 0 : draw.Between(1, 9));
    const at::Tensor x = random.Normal({ends.back(), inputs}), dy = random.Normal({ends.back(), outputs});
    const at::Tensor weight = random.Normal({count, outputs, inputs}), x_leaf = Leaf(x), weight_leaf = Leaf(weight);
    std::vector<at::Tensor> parts;
    for (int64_t e = 0, begin = 0; e < count; begin = ends[static_cast<size_t>(e++)]) {
      parts.push_back(x_leaf.slice(0, begin, ends[static_cast<size_t>(e)]).matmul(weight_leaf[e].t()));
    }
    const at::Tensor y = at::cat(parts), made = GroupedLinearForward(x, weight, ends);
    EXPECT_EQ(made.sizes(), y.sizes());
    const at::Tensor dx = GroupedLinearBackwardInput(dy, weight, ends);
    const at::Tensor zeros = at::zeros({2, outputs}, made.options());
    EXPECT_TRUE(at::equal(GroupedLinearForward(x, weight, ends, 2), at::cat({made, zeros}))) << "seed " << seed;
    const at::Tensor dzeros = at::zeros({1, inputs}, dx.options());
    EXPECT_TRUE(at::equal(GroupedLinearBackwardInput(dy, weight, ends, 1), at::cat({dx, dzeros}))) << "seed " << seed;
    at::Tensor dweight = at::ones_like(weight);  // it is added to
    GroupedLinearBackwardWeight(testing::TestBackend(), dy, x, dweight, ends);
    if (ends.back() == 0) continue;
    const auto expected = AutogradOf({y}, {dy}, {x_leaf, weight_leaf});
    EXPECT_LT(RelativeError(made, y), kExact) << "seed " << seed;
    EXPECT_LT(RelativeError(dx, expected[0]), kExact) << "seed " << seed;
    EXPECT_LT(RelativeError(dweight - 1, expected[1]), 10 * kExact) << "seed " << seed;  // one is taken off again
  }
}

// RowsForExperts and SumOfExperts are each other's backward, and so are ForExperts and FromExperts.
TEST(DispatchTest, TheWayThereIsTheBackwardOfTheWayBack) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Draw draw(seed);
    Random random(seed);
    const at::Tensor experts = DrawChoices(draw, /*fewest_rows=*/1);
    const int64_t rows = experts.size(0), per_token = experts.size(1);
    const ExpertRange here = DrawRange(draw, /*count=*/9);
    const Dispatch dispatch = MakeDispatch(experts, here);
    const int64_t assignments = dispatch.assignments();
    const at::Tensor x = random.Normal({rows, 5}), y = random.Normal({assignments, 5});
    const at::Tensor with_zeros = at::cat({y, at::zeros({dispatch.zero_rows(), 5}, y.options())});
    const double there = (RowsForExperts(x, dispatch) * y).sum().item<double>();
    const double back = (x * SumOfExperts(with_zeros, dispatch)).sum().item<double>();
    EXPECT_NEAR(there, back, 1e-12 * (1 + std::abs(there))) << "seed " << seed;
    const at::Tensor values = random.Normal({rows, per_token});
    const at::Tensor is_here = (experts >= here.begin).logical_and(experts < here.begin + here.count);
    EXPECT_TRUE(at::equal(FromExperts(ForExperts(values, dispatch), dispatch), values * is_here)) << "seed " << seed;
    const at::Tensor order = at::argsort(dispatch.places_TU.reshape({-1}), /*stable=*/true);
    const at::Tensor weights = values.reshape({-1}).index_select(0, order.narrow(0, 0, assignments));
    EXPECT_TRUE(at::equal(ForExperts(values, dispatch), weights)) << "seed " << seed;
  }
}

TEST(RoutingControlTest, AGradientThatForgetsTheOtherProbabilitiesFails) {
  Random random(6);
  const Experts experts = {.count = 6, .per_token = 2, .weights_sum_to_one = false};
  const at::Tensor logits = random.Normal({9, 6}), dweights = random.Normal({9, 2}), leaf = Leaf(logits);
  const Routing routing = RouteForward(logits, experts);
  const at::Tensor expected = AutogradOf({PlainWeights(leaf, routing.experts_TU, experts)}, {dweights}, {leaf})[0];
  const at::Tensor wrong = at::zeros_like(logits).scatter(1, routing.experts_TU, routing.weights_TU * dweights);
  EXPECT_GT(RelativeError(wrong, expected), 1e-2);
  EXPECT_LT(RelativeError(RouteBackward(routing, dweights, experts), expected), kExact);
}

}  // namespace
}  // namespace stemma::worker
