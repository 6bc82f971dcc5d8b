// Updates of some ranges of the parameters against updates of everything: the same bits there, and nothing elsewhere.
// Sizes and cuts are drawn.
#include "worker/optim/ranges.h"

#include <gtest/gtest.h>

#include <random>
#include <tuple>

#include "common/cost/state_slabs.h"
#include "tests/testing/backends.h"
#include "tests/testing/namespaces.h"
#include "tests/worker/optim/parameters.h"
#include "worker/memory/thread_copy_engine.h"

namespace stemma::testing {
namespace {

constexpr double kRangesClip = 0.37;

class Draw {
 public:
  explicit Draw(int seed) : random_(static_cast<uint32_t>(seed)) {}
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint32_t>(high - low + 1));
  }
  std::vector<std::vector<int64_t>> Sizes() {
    std::vector<std::vector<int64_t>> sizes;
    for (int64_t i = Between(1, 6); i > 0; --i) {
      if (Between(0, 1) == 0) {
        sizes.push_back({Between(1, 90)});
      } else {
        sizes.push_back({Between(1, 40), Between(1, 40)});
      }
    }
    return sizes;
  }
  // Everything, cut at units and dealt to `shards`.
  std::vector<ParameterRanges> Shards(const std::vector<Parameter>& parameters, size_t shards) {
    std::vector<ParameterRanges> dealt(shards);
    for (const ParameterRange& whole : AllRanges(parameters)) {
      for (int64_t begin = 0; begin < whole.count;) {
        const int64_t count = std::min(whole.count - begin, kStateSlabUnit * Between(1, 20));
        dealt[static_cast<size_t>(Between(0, static_cast<int64_t>(shards) - 1))].push_back(
            {whole.parameter, begin, count});
        begin += count;
      }
    }
    return dealt;
  }

 private:
  std::mt19937 random_;
};

void ExpectSameBits(const std::vector<Parameter>& a, const std::vector<Parameter>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i].weight, b[i].weight) && at::equal(a[i].master, b[i].master)) << a[i].name;
    EXPECT_TRUE(at::equal(a[i].exp_avg, b[i].exp_avg) && at::equal(a[i].exp_avg_sq, b[i].exp_avg_sq)) << a[i].name;
  }
}

using RangesCase = std::tuple<int, at::ScalarType, v1::OptimizerResidency>;

class RangesTest : public ::testing::TestWithParam<RangesCase> {
 protected:
  RangesTest() : draw_(std::get<0>(GetParam())), sizes_(draw_.Sizes()), slab_elements_(draw_.Between(1, 900)) {}
  std::vector<Parameter> Make() const {
    return MakeParameters(std::get<1>(GetParam()), sizes_, std::get<2>(GetParam()));
  }
  void Step(std::vector<Parameter>& parameters, const ParameterRanges& ranges, int64_t step) {
    EXPECT_EQ(
        AdamwStep(TestBackend(), parameters, ranges, {Adam(), kRangesClip, step}, {&copy_engine_, slab_elements_}), "");
  }

  Draw draw_;
  const std::vector<std::vector<int64_t>> sizes_;
  const int64_t slab_elements_;
  ThreadCopyEngine copy_engine_;
};

TEST_P(RangesTest, ShardsSteppedOneAfterTheOtherGiveTheBitsOfAWholeStep) {
  std::vector<Parameter> whole = Make(), sharded = Make();
  for (int64_t step = 1; step <= 2; ++step) {
    SetGradients(whole, step);
    SetGradients(sharded, step);
    Step(whole, AllRanges(whole), step);
    for (const ParameterRanges& shard : draw_.Shards(sharded, 3)) Step(sharded, shard, step);
    ExpectSameBits(whole, sharded);
  }
}

TEST_P(RangesTest, ElementsOutsideTheRangesStayAsTheyAre) {
  std::vector<Parameter> parameters = Make();
  const std::vector<Parameter> untouched = Make();
  SetGradients(parameters, 1);
  const ParameterRanges ranges = draw_.Shards(parameters, 2)[0];
  Step(parameters, ranges, 1);
  std::vector<at::Tensor> inside;
  for (const Parameter& p : parameters) inside.push_back(at::zeros({p.grad.numel()}, at::kBool));
  for (const ParameterRange& range : ranges) {
    inside[static_cast<size_t>(range.parameter)].narrow(0, range.begin, range.count).fill_(true);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor changed = parameters[i].master.view(-1).ne(untouched[i].master.view(-1));
    EXPECT_TRUE(at::equal(changed, inside[i])) << parameters[i].name << ": every element inside moves, none outside";
  }
}

TEST_P(RangesTest, AStepThatIsRepeatedOnStatesPutBackGivesTheSameBits) {
  std::vector<Parameter> once = Make(), again = Make();
  SetGradients(once, 1);
  SetGradients(again, 1);
  std::vector<at::Tensor> gradients;
  for (const Parameter& p : again) gradients.push_back(p.grad.clone());
  Step(again, AllRanges(again), 1);
  const std::vector<Parameter> fresh = Make();
  for (size_t i = 0; i < again.size(); ++i) {
    EXPECT_TRUE(at::equal(again[i].grad, gradients[i])) << "the clip is not in the gradient";
    again[i].weight.copy_(fresh[i].weight);
    again[i].master.copy_(fresh[i].master);
    again[i].exp_avg.copy_(fresh[i].exp_avg);
    again[i].exp_avg_sq.copy_(fresh[i].exp_avg_sq);
  }
  Step(again, AllRanges(again), 1);
  Step(once, AllRanges(once), 1);
  ExpectSameBits(once, again);
}

TEST_P(RangesTest, SquaresAndNonfiniteNumbersAreThoseOfTheRanges) {
  std::vector<Parameter> parameters = Make();
  SetGradients(parameters, 1);
  const std::vector<ParameterRanges> shards = draw_.Shards(parameters, 3);
  double expected = 0, sum = 0;
  for (const Parameter& p : parameters) expected += p.grad.to(at::kDouble).square().sum().item<double>();
  for (const ParameterRanges& shard : shards) sum += GradNormSquared(TestBackend(), parameters, shard);
  EXPECT_NEAR(sum, expected, 1e-13 * expected);  // some thousand terms, in fp64
  EXPECT_NEAR(GradNormSquared(TestBackend(), parameters, AllRanges(parameters)), expected, 1e-13 * expected);
  for (const ParameterRanges& shard : shards) {
    if (shard.empty()) continue;
    const ParameterRange& last = shard.back();
    at::Tensor flat = parameters[static_cast<size_t>(last.parameter)].grad.view(-1);
    const at::Tensor kept = flat.clone();
    flat[last.end() - 1] = std::nan("");
    for (const ParameterRanges& other : shards) {
      const std::string name = &other == &shard ? parameters[static_cast<size_t>(last.parameter)].name : "";
      EXPECT_EQ(FirstNonfinite(TestBackend(), parameters, other), name);
      EXPECT_EQ(NonfiniteNormText(TestBackend(), parameters, other),
                name.empty() ? "the norm of the gradients overflows" : "the gradient of " + name + " is not finite");
    }
    flat.copy_(kept);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RangesTest,
                         ::testing::Combine(::testing::Range(1, 5),
                                            ::testing::Values(at::kFloat, at::kBFloat16, at::kDouble),
                                            ::testing::Values(v1::DEVICE, v1::HOST)));

TEST(RangesDeathTest, ListsThatBreakTheInvariantsEndTheProcess) {
  const std::vector<int64_t> elements = {100, 40};
  CheckRanges({{0, 0, 32}, {0, 48, 52}, {1, 16, 24}}, elements);
  EXPECT_DEATH(CheckRanges({{1, 0, 16}, {0, 0, 16}}, elements), "in order");
  EXPECT_DEATH(CheckRanges({{0, 0, 32}, {0, 16, 16}}, elements), "overlap");
  EXPECT_DEATH(CheckRanges({{0, 0, 112}}, elements), "of parameter 0");
  EXPECT_DEATH(CheckRanges({{0, 8, 8}}, elements), "of parameter 0");
  EXPECT_DEATH(CheckRanges({{0, 0, 8}}, elements), "of parameter 0");
  EXPECT_DEATH(CheckRanges({{2, 0, 16}}, elements), "");
  EXPECT_DEATH(CheckRanges({{0, 0, 0}}, elements), "");
}

}  // namespace
}  // namespace stemma::testing
