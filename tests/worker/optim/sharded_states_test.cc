// Ranks that own parts of the optimizer's states against one that owns everything: the same bits in every element, from
// no more bytes than the parts. Sizes, buckets and ranks are drawn.
#include <gtest/gtest.h>

#include <random>
#include <tuple>

#include "tests/testing/backends.h"
#include "tests/testing/namespaces.h"
#include "tests/worker/optim/parameters.h"
#include "worker/memory/thread_copy_engine.h"

namespace stemma::testing {
namespace {

constexpr double kClip = 0.37;
constexpr int64_t kSteps = 3, kSlabElements = 64;

using ShardedCase = std::tuple<int, at::ScalarType, v1::OptimizerResidency>;

class ShardedStatesTest : public ::testing::TestWithParam<ShardedCase> {
 protected:
  ShardedStatesTest() : random_(static_cast<uint32_t>(std::get<0>(GetParam()))) {
    for (int64_t i = Between(1, 6); i > 0; --i) sizes_.push_back({Between(1, 40), Between(1, 40)});
    ranks_ = Between(2, 5);
    bucket_elements_ = Between(1, 3000);
  }
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint32_t>(high - low + 1));
  }
  std::vector<Parameter> Make(int64_t rank, int64_t ranks) const {
    return MakeParameters(std::get<1>(GetParam()), sizes_, std::get<2>(GetParam()), rank, ranks, bucket_elements_);
  }
  void Step(std::vector<Parameter>& parameters, const ParameterRanges& ranges) {
    for (int64_t step = 1; step <= kSteps; ++step) {
      SetGradients(parameters, step);
      EXPECT_EQ(AdamwStep(TestBackend(), parameters, ranges, {Adam(), kClip, step},
                          {.copy_engine = &copy_engine_, .slab_elements = kSlabElements}),
                "");
    }
  }

  std::mt19937 random_;
  std::vector<std::vector<int64_t>> sizes_;
  int64_t ranks_ = 1, bucket_elements_ = 1;
  ThreadCopyEngine copy_engine_;
};

TEST_P(ShardedStatesTest, StepTheirElementsAsOneRankDoes) {
  std::vector<Parameter> whole = Make(0, 1);
  Step(whole, AllRanges(whole));
  const OptimizerShards shards(ElementsOf(whole), ranks_, bucket_elements_);
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    std::vector<Parameter> own = Make(rank, ranks_);
    Step(own, shards.owned(rank));
    int64_t elements = 0;
    for (const ParameterRange& r : shards.owned(rank)) {
      const Parameter &a = own[static_cast<size_t>(r.parameter)], &b = whole[static_cast<size_t>(r.parameter)];
      const auto of = [&](const Parameter& p, const at::Tensor& state) {
        return p.StateElements(state, r.begin, r.count);
      };
      EXPECT_TRUE(
          at::equal(Parameter::Elements(a.weight, r.begin, r.count), Parameter::Elements(b.weight, r.begin, r.count)))
          << a.name;
      EXPECT_TRUE(at::equal(a.MasterElements(r.begin, r.count), b.MasterElements(r.begin, r.count))) << a.name;
      EXPECT_TRUE(at::equal(of(a, a.exp_avg), of(b, b.exp_avg))) << a.name;
      EXPECT_TRUE(at::equal(of(a, a.exp_avg_sq), of(b, b.exp_avg_sq))) << a.name;
      elements += r.count;
    }
    int64_t held = 0;
    for (const Parameter& p : own) held += p.exp_avg.numel();
    EXPECT_EQ(held, elements) << "rank " << rank << " of " << ranks_;
  }
}

INSTANTIATE_TEST_SUITE_P(Drawn, ShardedStatesTest,
                         ::testing::Combine(::testing::Range(0, 6),
                                            ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                                            ::testing::Values(v1::DEVICE, v1::HOST)));

}  // namespace
}  // namespace stemma::testing
