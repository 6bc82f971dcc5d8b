// The exchange of ZeRO-1 between ranks that are threads: plain sums are the oracle. Sizes, ranks and buckets are drawn.
#include "worker/optim/shard_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <thread>
#include <tuple>

#include "common/cost/state_shards.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/thread_communicator.h"
#include "tests/worker/optim/parameters.h"
#include "worker/memory/cpu_allocator.h"
#include "worker/parallel/collective.h"

namespace stemma::testing {
namespace {

using ExchangeCase = std::tuple<int, at::ScalarType>;

class ShardExchangeTest : public ::testing::TestWithParam<ExchangeCase> {
 protected:
  ShardExchangeTest() : random_(static_cast<uint32_t>(std::get<0>(GetParam()))) {
    InstallCpuAllocator();
    for (int64_t i = Between(1, 6); i > 0; --i) sizes_.push_back({Between(1, 40), Between(1, 40)});
    ranks_ = static_cast<int>(Between(1, 4));
    bucket_elements_ = Between(1, 3000);
    for (int rank = 0; rank < ranks_; ++rank) {
      of_ranks_.push_back(MakeParameters(std::get<1>(GetParam()), sizes_));
      for (Parameter& p : of_ranks_.back()) p.grad.copy_(at::randint(-99, 99, p.grad.sizes()));  // sums are exact
    }
  }
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint32_t>(high - low + 1));
  }
  OptimizerShards Shards() const { return {ElementsOf(of_ranks_[0]), ranks_, bucket_elements_}; }

  // Runs on every rank, each on a thread; returns what moved.
  std::vector<std::map<std::string, CollectiveTotals>> OnRanks(
      const std::function<absl::Status(ShardExchange&, std::vector<Parameter>&)>& run) {
    std::vector<std::unique_ptr<Communicator>> ranks = MakeThreadRanks(ranks_, absl::Minutes(1));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([&, rank] {
        std::vector<Parameter>& parameters = of_ranks_[static_cast<size_t>(rank)];
        ShardExchange exchange(*ranks[static_cast<size_t>(rank)], Shards(), parameters);
        EXPECT_TRUE(run(exchange, parameters).ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<std::map<std::string, CollectiveTotals>> totals;
    for (const auto& rank : ranks) totals.push_back(rank->stats().Read());
    return totals;
  }

  // Bytes of all rounds, with what pads the parts to one length.
  int64_t PaddedBytes(int64_t element_bytes) const {
    int64_t bytes = 0;
    for (const ShardRound& round : Shards().Rounds()) {
      bytes += CollectiveBytes(CollectiveKind::kAllGather, ranks_ * round.part_elements * element_bytes, ranks_);
    }
    return bytes;
  }

  std::mt19937 random_;
  std::vector<std::vector<int64_t>> sizes_;
  int ranks_ = 1;
  int64_t bucket_elements_ = 1;
  std::vector<std::vector<Parameter>> of_ranks_;
};

TEST_P(ShardExchangeTest, OwnersHaveTheSumsAndTheOthersTheirOwn) {
  const OptimizerShards shards = Shards();
  std::vector<std::vector<at::Tensor>> before(sizes_.size());
  std::vector<at::Tensor> sums;
  for (size_t p = 0; p < sizes_.size(); ++p) {
    sums.push_back(at::zeros_like(of_ranks_[0][p].grad));
    for (const std::vector<Parameter>& parameters : of_ranks_) {
      before[p].push_back(parameters[p].grad.clone());
      sums[p] += parameters[p].grad;
    }
  }
  const auto totals = OnRanks([](ShardExchange& exchange, std::vector<Parameter>&) {
    exchange.AllGradientsAreFinal();
    return exchange.FinishReduction();
  });
  for (int rank = 0; rank < ranks_; ++rank) {
    for (size_t p = 0; p < sizes_.size(); ++p) {
      at::Tensor expected = before[p][static_cast<size_t>(rank)];
      for (const ParameterRange& r : shards.owned(rank)) {
        if (r.parameter != static_cast<int64_t>(p)) continue;
        Parameter::Elements(expected, r.begin, r.count).copy_(Parameter::Elements(sums[p], r.begin, r.count));
      }
      EXPECT_TRUE(at::equal(of_ranks_[static_cast<size_t>(rank)][p].grad, expected)) << "p" << p << ", rank " << rank;
    }
    const auto moved = totals[static_cast<size_t>(rank)].find("gradients");
    const int64_t element_bytes = static_cast<int64_t>(of_ranks_[0][0].grad.element_size());
    EXPECT_EQ(moved == totals[static_cast<size_t>(rank)].end() ? 0 : moved->second.bytes, PaddedBytes(element_bytes));
  }
}

TEST_P(ShardExchangeTest, WeightsComeFromTheirOwners) {
  const OptimizerShards shards = Shards();
  std::vector<at::Tensor> expected;
  for (size_t p = 0; p < sizes_.size(); ++p) {
    expected.push_back(at::empty_like(of_ranks_[0][p].weight));
    for (int rank = 0; rank < ranks_; ++rank) {
      at::Tensor weight = of_ranks_[static_cast<size_t>(rank)][p].weight;
      weight.copy_(at::randn(weight.sizes()));
      for (const ParameterRange& r : shards.owned(rank)) {
        if (r.parameter != static_cast<int64_t>(p)) continue;
        Parameter::Elements(expected[p], r.begin, r.count).copy_(Parameter::Elements(weight, r.begin, r.count));
      }
    }
  }
  const auto totals =
      OnRanks([](ShardExchange& exchange, std::vector<Parameter>&) { return exchange.GatherWeights(); });
  for (int rank = 0; rank < ranks_; ++rank) {
    for (size_t p = 0; p < sizes_.size(); ++p) {
      EXPECT_TRUE(at::equal(of_ranks_[static_cast<size_t>(rank)][p].weight, expected[p]))
          << "p" << p << ", rank " << rank;
    }
    const auto moved = totals[static_cast<size_t>(rank)].find("weights");
    const int64_t element_bytes = static_cast<int64_t>(of_ranks_[0][0].weight.element_size());
    EXPECT_EQ(moved == totals[static_cast<size_t>(rank)].end() ? 0 : moved->second.bytes, PaddedBytes(element_bytes));
  }
}

TEST_P(ShardExchangeTest, TakesTheBytesThatThePlanCounts) {
  if (ranks_ == 1) return;
  StateShare share;
  for (const ShardRound& round : Shards().Rounds()) {
    share.part_elements = std::max(share.part_elements, round.part_elements);
    share.in_flight = std::min<int64_t>(share.in_flight + 1, 2);
  }
  const int64_t element_bytes = static_cast<int64_t>(of_ranks_[0][0].grad.element_size());
  std::vector<std::unique_ptr<Communicator>> ranks = MakeThreadRanks(ranks_, absl::Minutes(1));
  const int64_t before = CpuMemoryStats().current_bytes;
  const ShardExchange exchange(*ranks[0], Shards(), of_ranks_[0]);
  EXPECT_EQ(CpuMemoryStats().current_bytes - before, ExchangeBytes(share, ranks_, element_bytes));
}

INSTANTIATE_TEST_SUITE_P(Drawn, ShardExchangeTest,
                         ::testing::Combine(::testing::Range(0, 8),
                                            ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16)));

}  // namespace
}  // namespace stemma::testing
