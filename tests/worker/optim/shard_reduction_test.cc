// Rounds of a reduction that begin while gradients are still being made: which of them, how many at once, and that sums
// have the bits of a plain loop over the ranks. Sizes, ranks, buckets and when gradients are final are drawn;
// STEMMA_SEED draws others.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/recording_rank.h"
#include "tests/testing/thread_communicator.h"
#include "tests/worker/optim/parameters.h"
#include "worker/optim/shard_exchange.h"

namespace stemma::testing {
namespace {

constexpr int64_t kAtOnce = 2;        // rounds
constexpr double kNotFinal = 1.0e30;  // where a gradient is not there yet
constexpr absl::Duration kAtMost = absl::Minutes(1);

// What one rank's communicator was asked for, and in which queue.
struct Flights {
  int64_t begun = 0, ended = 0, most = 0;
  bool is_beside = false;                    // the side queue is given work
  int64_t calls_beside = 0;                  // begins and ends
  int64_t ended_when_the_compute_waits = 0;  // for the side queue, the last time

  void Note(const std::string& name, bool begins) {
    if (name != kGradientsName) return;
    ++(begins ? begun : ended);
    calls_beside += is_beside ? 1 : 0;
    most = std::max(most, begun - ended);
  }
};

class RecordingQueue final : public SideQueue {
 public:
  explicit RecordingQueue(Flights& flights) : flights_(flights) {}

  void Run(const std::function<void()>& work) override {
    flights_.is_beside = true;
    work();
    flights_.is_beside = false;
  }
  void ComputeWaits() override { flights_.ended_when_the_compute_waits = flights_.ended; }

 private:
  Flights& flights_;
};

// Says that gradients are final, and what that has begun.
using Say = std::function<void(int64_t first)>;

class ShardReductionTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  ShardReductionTest() : seed_(FirstSeed() + GetParam()), random_(seed_) {
    for (int64_t i = Between(1, 9); i > 0; --i) sizes_.push_back({Between(1, 40), Between(1, 60)});
    num_ranks_ = static_cast<int>(Between(2, 4));
    bucket_elements_ = Between(1, 4000);
    for (int rank = 0; rank < num_ranks_; ++rank) of_ranks_.push_back(MakeParameters(at::kFloat, sizes_));
  }

  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint32_t>(high - low + 1));
  }
  OptimizerShards Shards() const { return {ElementsOf(of_ranks_[0]), num_ranks_, bucket_elements_}; }

  // Draws the gradients that a rank's backward will have made.
  std::vector<std::vector<at::Tensor>> DrawGradients(uint64_t step) const {
    at::manual_seed(100 * seed_ + step);
    std::vector<std::vector<at::Tensor>> of_ranks(static_cast<size_t>(num_ranks_));
    for (std::vector<at::Tensor>& gradients : of_ranks) {
      for (const std::vector<int64_t>& size : sizes_) gradients.push_back(at::randn(size, at::kFloat));
    }
    return of_ranks;
  }

  // Counts the rounds, from the last to the first, before the first one that brings a parameter before `first`.
  int64_t Ready(int64_t first) const {
    const std::vector<ShardRound> rounds = Shards().Rounds();
    for (size_t ready = 0; ready < rounds.size(); ++ready) {
      for (const Slab& part : rounds[rounds.size() - 1 - ready].parts) {
        for (const SlabPiece& piece : part) {
          if (piece.parameter < first) return static_cast<int64_t>(ready);
        }
      }
    }
    return static_cast<int64_t>(rounds.size());
  }

  // Makes one rank's gradients from the last parameter to the first; says of some, on the way, that they are final.
  void Backward(int rank, uint64_t step, const std::vector<at::Tensor>& right, const Say& say) {
    std::mt19937 random(seed_ * 64 + static_cast<uint32_t>(step) * 8 + static_cast<uint32_t>(rank));
    std::vector<Parameter>& parameters = of_ranks_[static_cast<size_t>(rank)];
    for (Parameter& p : parameters) p.grad.fill_(kNotFinal);
    for (size_t p = parameters.size(); p-- > 0;) {
      parameters[p].grad.copy_(right[p]);
      if (random() % 2 == 0) say(static_cast<int64_t>(p));
    }
  }

  void ExpectSums(const std::vector<std::vector<at::Tensor>>& gradients) const {
    const OptimizerShards shards = Shards();
    for (int rank = 0; rank < num_ranks_; ++rank) {
      for (size_t p = 0; p < sizes_.size(); ++p) {
        at::Tensor sum = gradients[0][p].clone(), expected = gradients[static_cast<size_t>(rank)][p].clone();
        for (size_t r = 1; r < gradients.size(); ++r) sum += gradients[r][p];
        for (const ParameterRange& r : shards.owned(rank)) {
          if (r.parameter != static_cast<int64_t>(p)) continue;
          Parameter::Elements(expected, r.begin, r.count).copy_(Parameter::Elements(sum, r.begin, r.count));
        }
        EXPECT_TRUE(at::equal(of_ranks_[static_cast<size_t>(rank)][p].grad, expected))
            << "p" << p << ", rank " << rank << ", STEMMA_SEED=" << seed_;
      }
    }
  }

  // Runs on every rank, each on a thread, with an exchange of its own.
  void OnRanks(DoneIs done, const std::function<void(int rank, ShardExchange& exchange, const Flights& flights)>& run,
               bool has_side_queue = false) {
    std::vector<std::unique_ptr<Communicator>> ranks = MakeThreadRanks(num_ranks_, kAtMost);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      threads.emplace_back([&, rank] {
        Flights flights;
        const auto r = static_cast<size_t>(rank);
        const std::unique_ptr<Communicator> recording = MakeRecordingRank(
            std::move(ranks[r]), done, [&](const std::string& name, bool begins) { flights.Note(name, begins); });
        ShardExchange exchange(*recording, Shards(), of_ranks_[r],
                               has_side_queue ? std::make_unique<RecordingQueue>(flights) : nullptr);
        run(rank, exchange, flights);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  const uint32_t seed_;
  std::mt19937 random_;
  std::vector<std::vector<int64_t>> sizes_;
  int num_ranks_ = 2;
  int64_t bucket_elements_ = 1;
  std::vector<std::vector<Parameter>> of_ranks_;
};

// Where nothing says that it is done, as many are in flight as there are buffers: begun as soon as all that they bring
// is final, and no sooner.
TEST_P(ShardReductionTest, RoundsBeginWithTheirLastGradientAndNotMoreThanTwoAtOnce) {
  std::vector<std::vector<std::vector<at::Tensor>>> of_steps = {DrawGradients(0), DrawGradients(1)};
  OnRanks(DoneIs::kNever, [&](int rank, ShardExchange& exchange, const Flights& flights) {
    const auto rounds = static_cast<int64_t>(Shards().Rounds().size());
    for (int64_t step = 0; step < 2; ++step) {
      const auto begun = [&] { return flights.begun - step * rounds; };
      Backward(rank, static_cast<uint64_t>(step), of_steps[static_cast<size_t>(step)][static_cast<size_t>(rank)],
               [&](int64_t first) {
                 exchange.GradientsAreFinal(first);
                 EXPECT_EQ(begun(), std::min(kAtOnce, Ready(first))) << "from p" << first << ", STEMMA_SEED=" << seed_;
                 EXPECT_EQ(exchange.rounds_started(), begun());
               });
      exchange.AllGradientsAreFinal();
      EXPECT_EQ(begun(), std::min(kAtOnce, rounds));
      EXPECT_TRUE(exchange.FinishReduction().ok());
      EXPECT_EQ(begun(), rounds);
      EXPECT_EQ(flights.ended, flights.begun);
      EXPECT_EQ(flights.most, std::min(kAtOnce, rounds)) << "STEMMA_SEED=" << seed_;
    }
  });
  ExpectSums(of_steps[1]);
}

TEST_P(ShardReductionTest, SumsDoNotDependOnWhenGradientsAreFinal) {
  const std::vector<std::vector<at::Tensor>> gradients = DrawGradients(2);
  OnRanks(DoneIs::kWhenItIs, [&](int rank, ShardExchange& exchange, const Flights& flights) {
    Backward(rank, 2, gradients[static_cast<size_t>(rank)], [&](int64_t first) {
      exchange.GradientsAreFinal(first);
      EXPECT_LE(flights.begun, Ready(first)) << "from p" << first << ", STEMMA_SEED=" << seed_;
      EXPECT_GE(flights.begun, std::min(kAtOnce, Ready(first)));
    });
    exchange.AllGradientsAreFinal();
    EXPECT_TRUE(exchange.FinishReduction().ok());
    EXPECT_LE(flights.most, kAtOnce);
  });
  ExpectSums(gradients);
}

// Rounds that are done end without a wait, and make room: alone with a peer that is ahead, all begin in the backward.
TEST_P(ShardReductionTest, RoundsThatAreDoneMakeRoomForTheNext) {
  const std::vector<std::vector<at::Tensor>> gradients = DrawGradients(3);
  std::atomic<int> ahead{num_ranks_ - 1};
  absl::Notification first_may_begin;
  OnRanks(DoneIs::kWhenItIs, [&](int rank, ShardExchange& exchange, const Flights& flights) {
    if (rank > 0) {
      Backward(rank, 3, gradients[static_cast<size_t>(rank)], [](int64_t) {});
      exchange.AllGradientsAreFinal();
      if (--ahead == 0) first_may_begin.Notify();  // all others have their first rounds in flight
    } else {
      first_may_begin.WaitForNotificationWithTimeout(kAtMost);
      Backward(rank, 3, gradients[0], [&](int64_t first) { exchange.GradientsAreFinal(first); });
      exchange.AllGradientsAreFinal();
      EXPECT_GE(flights.ended, std::min<int64_t>(kAtOnce, static_cast<int64_t>(Shards().Rounds().size())))
          << "before anybody waits, STEMMA_SEED=" << seed_;
    }
    EXPECT_TRUE(exchange.FinishReduction().ok());
  });
  ExpectSums(gradients);
}

// Where a device has a queue beside the backward's, its waits are the queue's: the host finds nothing done, begins
// every round as soon as its gradients are final, and lets the next take the buffers of the oldest.
TEST_P(ShardReductionTest, BesideTheBackwardAllRoundsBeginInIt) {
  const std::vector<std::vector<at::Tensor>> gradients = DrawGradients(7);
  OnRanks(
      DoneIs::kNever,
      [&](int rank, ShardExchange& exchange, const Flights& flights) {
        const auto rounds = static_cast<int64_t>(Shards().Rounds().size());
        Backward(rank, 7, gradients[static_cast<size_t>(rank)], [&](int64_t first) {
          exchange.GradientsAreFinal(first);
          EXPECT_EQ(flights.begun, Ready(first)) << "from p" << first << ", STEMMA_SEED=" << seed_;
          EXPECT_EQ(flights.ended, std::max<int64_t>(0, flights.begun - kAtOnce)) << "a wait that nothing needs yet";
        });
        exchange.AllGradientsAreFinal();
        EXPECT_EQ(flights.begun, rounds);
        EXPECT_EQ(flights.ended_when_the_compute_waits, 0) << "the backward waits for a round";
        EXPECT_TRUE(exchange.FinishReduction().ok());
        EXPECT_EQ(flights.ended_when_the_compute_waits, rounds);
        EXPECT_EQ(flights.most, std::min(kAtOnce, rounds)) << "STEMMA_SEED=" << seed_;
        EXPECT_EQ(flights.calls_beside, 2 * rounds) << "a round is in the backward's queue";
      },
      /*has_side_queue=*/true);
  ExpectSums(gradients);
}

// A rank that stops in the middle walks the rest with what it has; the next reduction is right.
TEST_P(ShardReductionTest, ARankThatStopsLeavesNobodyWaiting) {
  const std::vector<std::vector<at::Tensor>> stopped = DrawGradients(4), gradients = DrawGradients(5);
  const int stops = static_cast<int>(Between(0, num_ranks_ - 1));
  const auto after = Between(0, static_cast<int64_t>(sizes_.size()) - 1);
  OnRanks(DoneIs::kWhenItIs, [&](int rank, ShardExchange& exchange, const Flights&) {
    Backward(rank, 4, stopped[static_cast<size_t>(rank)], [&](int64_t first) {
      if (rank != stops || first >= after) exchange.GradientsAreFinal(first);
    });
    exchange.AllGradientsAreFinal();
    EXPECT_TRUE(exchange.FinishReduction().ok());
    Backward(rank, 5, gradients[static_cast<size_t>(rank)], [&](int64_t first) { exchange.GradientsAreFinal(first); });
    exchange.AllGradientsAreFinal();
    EXPECT_TRUE(exchange.FinishReduction().ok());
  });
  ExpectSums(gradients);
}

// A rank that goes away in the middle is an error of the others, who leave nothing in flight.
TEST_P(ShardReductionTest, ALostRankIsUnavailable) {
  const std::vector<std::vector<at::Tensor>> gradients = DrawGradients(6);
  const auto rounds = static_cast<int64_t>(Shards().Rounds().size());
  OnRanks(DoneIs::kWhenItIs, [&](int rank, ShardExchange& exchange, const Flights& flights) {
    Backward(rank, 6, gradients[static_cast<size_t>(rank)], [&](int64_t first) {
      if (rank > 0) exchange.GradientsAreFinal(first);
    });
    if (rank == 0) return;
    exchange.AllGradientsAreFinal();
    EXPECT_TRUE(absl::IsUnavailable(exchange.FinishReduction()));
    EXPECT_EQ(flights.begun, flights.ended);
    EXPECT_LE(flights.begun, std::min(kAtOnce, rounds));
    exchange.AllGradientsAreFinal();
    EXPECT_LE(exchange.rounds_started(), kAtOnce) << "nothing begins after an error";
    EXPECT_TRUE(absl::IsUnavailable(exchange.FinishReduction()));
    EXPECT_TRUE(absl::IsUnavailable(exchange.GatherWeights()));
  });
}

// As where a generation ends in the backward: rounds in flight use the exchange's memory.
TEST_P(ShardReductionTest, AnExchangeEndsWithItsRounds) {
  std::atomic<int64_t> in_flight{0};
  OnRanks(DoneIs::kNever, [&](int, ShardExchange& exchange, const Flights& flights) {
    exchange.AllGradientsAreFinal();
    in_flight += flights.begun - flights.ended;
  });
  EXPECT_EQ(in_flight, num_ranks_ * std::min(kAtOnce, static_cast<int64_t>(Shards().Rounds().size()))) << "control";
}

INSTANTIATE_TEST_SUITE_P(Drawn, ShardReductionTest, ::testing::Range(0U, 20U));

using ShardReductionDeathTest = ShardReductionTest;

TEST_P(ShardReductionDeathTest, GradientsThatAreFinalTwiceDie) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto run = [&] {
    OnRanks(DoneIs::kWhenItIs, [&](int, ShardExchange& exchange, const Flights&) {
      exchange.GradientsAreFinal(static_cast<int64_t>(sizes_.size()) - 1);
      exchange.GradientsAreFinal(static_cast<int64_t>(sizes_.size()) - 1);
    });
  };
  EXPECT_DEATH(run(), "gradients are final twice in a step");
}

TEST_P(ShardReductionDeathTest, AReductionThatLacksGradientsDies) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto run = [&] {
    OnRanks(DoneIs::kWhenItIs,
            [&](int, ShardExchange& exchange, const Flights&) { exchange.FinishReduction().IgnoreError(); });
  };
  EXPECT_DEATH(run(), "gradients are not final yet");
}

INSTANTIATE_TEST_SUITE_P(Drawn, ShardReductionDeathTest, ::testing::Range(0U, 2U));

}  // namespace
}  // namespace stemma::testing
