#include "tests/testing/thread_communicator.h"

#include <ATen/ATen.h>

#include <array>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/draw.h"
#include "tests/testing/meet.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/parallel/rank_program.h"
#include "worker/parallel/local_communicator.h"

namespace stemma::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kTimeout = absl::Seconds(60);  // no test waits so long unless it hangs

auto Unavailable(const auto&... parts) { return StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr(parts)...)); }

// Runs `body` for each rank on a thread of its own; a rank leaves when its body returns.
void RunRanks(std::vector<std::unique_ptr<Communicator>> ranks, const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&body, rank = std::move(rank)]() mutable {
      body(*rank);
      rank.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<ProgramResult> RunPrograms(int size, uint64_t seed) {
  std::vector<ProgramResult> results(static_cast<size_t>(size));
  RunRanks(MakeThreadRanks(size, kTimeout),
           [&](Communicator& rank) { results[static_cast<size_t>(rank.rank())] = RunRankProgram(rank, seed); });
  return results;
}

class ThreadRanksTest : public ::testing::TestWithParam<int> {};

TEST_P(ThreadRanksTest, EveryCollectiveIsThePlainSumOrCopyOnTheSameBits) {
  for (const uint64_t seed : {uint64_t{11}, uint64_t{FirstSeed()}}) {
    SCOPED_TRACE(seed);
    const auto results = RunPrograms(GetParam(), seed), again = RunPrograms(GetParam(), seed);
    for (size_t rank = 0; rank < results.size(); ++rank) {
      EXPECT_THAT(results[rank].failures, IsEmpty());
      EXPECT_EQ(results[rank].common_digest, results[0].common_digest);
      EXPECT_EQ(results[rank].common_digest, again[rank].common_digest);
      EXPECT_EQ(results[rank].own_digest, again[rank].own_digest);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Sizes, ThreadRanksTest, ::testing::Values(1, 2, 3, 4));

TEST(LocalCommunicatorTest, OneRankIsTheIdentityOnTheBitsOfOneThreadRank) {
  LocalCommunicator local("dp");
  const ProgramResult result = RunRankProgram(local, 11);
  EXPECT_THAT(result.failures, IsEmpty());
  EXPECT_EQ(result.common_digest, RunPrograms(1, 11)[0].common_digest);
  EXPECT_EQ(local.stats().Read().at("all_reduce").bytes, 0);
}

TEST(ThreadCommunicatorTest, SumsAreAddedInTheOrderOfTheRanks) {
  RunRanks(MakeThreadRanks(3, kTimeout), [](Communicator& rank) {
    // (1e8 + 1) - 1e8 is 0 in float32, and 1e8 - 1e8 + 1 is 1.
    at::Tensor values = at::tensor({std::array{1e8F, 1.0F, -1e8F}[static_cast<size_t>(rank.rank())]});
    ASSERT_THAT(rank.AllReduceSum("sum", values), IsOk());
    EXPECT_EQ(values.item<float>(), 0.0F);
  });
}

TEST(ThreadCommunicatorTest, CallsBytesAndSecondsAreCountedByName) {
  RunRanks(MakeThreadRanks(4, kTimeout), [](Communicator& rank) {
    at::Tensor values = at::ones({100}, at::kFloat), part = at::zeros({25}, at::kFloat);
    ASSERT_THAT(rank.AllReduceSum("gradients", values), IsOk());
    ASSERT_THAT(rank.AllReduceSum("gradients", values), IsOk());
    ASSERT_THAT(rank.ReduceScatterSum("parts", values, part), IsOk());
    ASSERT_THAT(rank.AllGather("weights", part, values), IsOk());
    const auto totals = rank.stats().Read();
    EXPECT_EQ(totals.at("gradients").calls, 2);
    EXPECT_EQ(totals.at("gradients").bytes, 2 * 600);
    EXPECT_EQ(totals.at("parts").bytes, 300);
    EXPECT_EQ(totals.at("weights").bytes, 300);
    EXPECT_GT(totals.at("gradients").seconds, 0);
  });
}

TEST(ThreadCommunicatorTest, AnObserverHearsEachCollectiveThatEnds) {
  struct Heard {
    std::string what;
    CollectiveRecord record;
  };
  RunRanks(MakeThreadRanks(2, kTimeout), [](Communicator& rank) {
    std::vector<Heard> heard;
    at::Tensor values = at::ones({100}, at::kFloat), part = at::zeros({50}, at::kFloat);
    ASSERT_THAT(Meet(rank, "before"), IsOk());
    rank.Observe([&](const CollectiveRecord& record) {
      heard.push_back({std::string(KindName(record.kind)) + " " + std::string(record.name), record});
    });
    const double before_s = RealClock().MonotonicSeconds();
    const auto pending = rank.StartReduceScatterSum("gradients", values, part);
    const double started_s = RealClock().MonotonicSeconds();
    ASSERT_THAT(rank.rank() == 0 ? rank.Send("keys", part, 1) : rank.Receive("keys", part, 0), IsOk());
    const double waiting_s = RealClock().MonotonicSeconds();
    ASSERT_THAT(pending->Wait(), IsOk());
    const double ended_s = RealClock().MonotonicSeconds();
    rank.Observe({});
    ASSERT_THAT(Meet(rank, "after"), IsOk());

    ASSERT_EQ(heard.size(), 2u) << "in the order in which they ended";
    EXPECT_EQ(heard[0].what, rank.rank() == 0 ? "send keys" : "receive keys");
    EXPECT_EQ(heard[0].record.peer, 1 - rank.rank());
    EXPECT_EQ(heard[0].record.bytes, 200);
    const CollectiveRecord& scatter = heard[1].record;
    EXPECT_EQ(heard[1].what, "reduce-scatter gradients");
    EXPECT_EQ(scatter.peer, -1);
    EXPECT_EQ(scatter.bytes, 200);
    // It went on beside the other one: begun before it, waited for after it.
    EXPECT_LE(before_s, scatter.started_s);
    EXPECT_LE(scatter.started_s, started_s);
    EXPECT_LE(waiting_s, scatter.awaited_s);
    EXPECT_LE(scatter.awaited_s, scatter.ended_s);
    EXPECT_LE(scatter.ended_s, ended_s);
  });
}

// Two rounds of a pipeline of two stages: hidden states go on while a gradient comes back.
absl::Status RunTwoRounds(Communicator& stage) {
  at::Tensor hidden = at::ones({4}), gradient = at::ones({4});
  if (stage.rank() == 0) {
    const auto first = stage.StartSend("hidden", hidden, 1), second = stage.StartSend("hidden", hidden, 1);
    absl::Status received = stage.Receive("gradient", gradient, 1);
    first->Wait().IgnoreError();
    second->Wait().IgnoreError();
    return received;
  }
  if (absl::Status received = stage.Receive("hidden", hidden, 0); !received.ok()) return received;
  const auto sent = stage.StartSend("gradient", gradient, 0);
  absl::Status received = stage.Receive("hidden", hidden, 0);
  sent->Wait().IgnoreError();
  return received;
}

// What a middle stage may do where it is ahead: it sends on what the last stage is not ready for, which waits until its
// gradients are taken, and receives the next round meanwhile.
absl::Status RunAhead(Communicator& stage) {
  at::Tensor hidden = at::ones({4}), gradient = at::ones({4});
  if (stage.rank() == 0) {
    absl::Status sent = stage.Send("hidden", hidden, 1);
    Meet(stage, "end").IgnoreError();
    return sent;
  }
  if (stage.rank() == 2) {
    absl::Status sent = stage.Send("gradient", gradient, 1);
    if (sent.ok()) sent = stage.Receive("hidden", hidden, 1);
    Meet(stage, "end").IgnoreError();
    return sent;
  }
  const auto ahead = stage.StartSend("hidden", hidden, 2);
  absl::Status received = stage.Receive("hidden", hidden, 0);
  if (received.ok()) received = stage.Receive("gradient", gradient, 2);
  ahead->Wait().IgnoreError();
  Meet(stage, "end").IgnoreError();
  return received;
}

TEST(ThreadCommunicatorTest, MessagesOfAPairWaitForNoOtherPairWhereTheyAreApart) {
  RunRanks(MakeThreadRanks(3, kTimeout, "pp", /*pairs_apart=*/true),
           [](Communicator& stage) { EXPECT_THAT(RunAhead(stage), IsOk()); });
  RunRanks(MakeThreadRanks(3, absl::Milliseconds(300), "pp", /*pairs_apart=*/false),
           [](Communicator& stage) { EXPECT_FALSE(RunAhead(stage).ok() && stage.rank() > 0); });
}

TEST(ThreadCommunicatorTest, MessagesOfBothDirectionsNeedAQueueForEach) {
  RunRanks(MakeThreadRanks(2, kTimeout, "pp", /*pairs_apart=*/true),
           [](Communicator& stage) { EXPECT_THAT(RunTwoRounds(stage), IsOk()); });
  RunRanks(MakeThreadRanks(2, absl::Milliseconds(300), "pp", /*pairs_apart=*/false), [](Communicator& stage) {
    EXPECT_THAT(RunTwoRounds(stage), Unavailable("waited for rank")) << "each waits for the other, as on one stream";
  });
}

TEST(ThreadCommunicatorTest, ARankThatLeavesEndsWhatTheOthersWaitFor) {
  RunRanks(MakeThreadRanks(3, kTimeout, "tp"), [](Communicator& rank) {
    at::Tensor values = at::ones({4});
    ASSERT_THAT(rank.AllReduceSum("first", values), IsOk());
    if (rank.rank() == 1) return;
    const absl::Status status = rank.AllReduceSum("second", values);
    EXPECT_THAT(status, Unavailable("all-reduce second of axis tp", "of 3", "waited for rank", "has left"));
    // Broken: the same error, at once, and nothing is counted.
    EXPECT_EQ(Meet(rank, "third"), status);
    at::Tensor all = at::ones({12});
    EXPECT_EQ(rank.StartAllGather("fourth", values, all)->Wait(), status);
    EXPECT_EQ(rank.stats().Read().size(), 1u);
  });
}

TEST(ThreadCommunicatorTest, ARankThatNeverComesIsNamedWhenTheTimeIsOver) {
  auto ranks = MakeThreadRanks(3, absl::Milliseconds(50));
  auto absent = std::move(ranks[2]);
  ranks.pop_back();
  RunRanks(std::move(ranks), [](Communicator& rank) {
    const absl::Status status = Meet(rank, "start");
    EXPECT_THAT(status, Unavailable("agreement start of axis dp", "waited for rank 2: "));
    EXPECT_TRUE(::testing::Value(status, Unavailable("timed out after 50ms")) ||
                ::testing::Value(status, Unavailable("has left")))
        << status;
  });
}

TEST(ThreadCommunicatorTest, PendingCollectivesEndWithTheFirstError) {
  auto ranks = MakeThreadRanks(2, kTimeout);
  ranks.pop_back();
  const at::Tensor own = at::ones({4});
  at::Tensor first = at::ones({8}), second = at::ones({8});
  const auto a = ranks[0]->StartAllGather("a", own, first), b = ranks[0]->StartAllGather("b", own, second);
  const absl::Status status = b->Wait();
  EXPECT_THAT(status, Unavailable("all-gather b", "rank 1 has left"));
  EXPECT_EQ(a->Wait(), status);
}

TEST(ThreadCommunicatorTest, ASenderAndAReceiverHearThatTheOtherHasLeft) {
  RunRanks(MakeThreadRanks(3, kTimeout), [](Communicator& rank) {
    at::Tensor values = at::ones({4});
    absl::Status status;
    if (rank.rank() == 0) return;
    if (rank.rank() == 1) status = rank.Send("keys", values, 0);
    if (rank.rank() == 2) status = rank.Receive("keys", values, 0);
    EXPECT_THAT(status, Unavailable(rank.rank() == 1 ? "send keys (peer 0)" : "receive keys (peer 0)",
                                    "waited for rank 0", "has left"));
  });
}

// What only a wrong program does. Each death is the negative control of a check that tests above worker/parallel rely
// on.
using Body = std::function<void(Communicator&)>;

void ExpectDeath(const Body& body, const std::string& message) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(RunRanks(MakeThreadRanks(2, kTimeout), body), message);
}

TEST(ThreadCommunicatorDeathTest, RanksThatMeetInDifferentCallsDieWithBothNames) {
  ExpectDeath(
      [](Communicator& rank) {
        at::Tensor values = at::ones({4});
        (void)rank.AllReduceSum(rank.rank() == 0 ? "gradients" : "norm", values);
      },
      "(gradients.*norm|norm.*gradients).*meet in different collectives");
  ExpectDeath(
      [](Communicator& rank) {
        at::Tensor values = at::ones({rank.rank() == 0 ? 4 : 5});
        (void)rank.AllReduceSum("gradients", values);
      },
      "of 4 Float.*of 5 Float|of 5 Float.*of 4 Float");
  ExpectDeath(
      [](Communicator& rank) {
        at::Tensor values = at::ones({4});
        (void)(rank.rank() == 0 ? rank.AllReduceSum("a", values) : rank.Broadcast("a", values, 0));
      },
      "all-reduce a.*broadcast a|broadcast a.*all-reduce a");
  ExpectDeath(
      [](Communicator& rank) {
        at::Tensor values = at::ones({4});
        (void)rank.Broadcast("a", values, rank.rank());
      },
      "from rank 0.*from rank 1|from rank 1.*from rank 0");
}

TEST(ThreadCommunicatorDeathTest, ASenderAndAReceiverOfDifferentThingsDie) {
  ExpectDeath(
      [](Communicator& rank) {
        at::Tensor values = at::ones({4});
        (void)(rank.rank() == 0 ? rank.Send("keys", values, 1) : rank.Receive("values", values, 0));
      },
      "send keys.*send values.*sends one thing");
}

TEST(CommunicatorDeathTest, WhatAProgramGetsWrongDies) {
  GTEST_FLAG_SET(death_test_style, "fast");  // one thread
  LocalCommunicator local("dp");
  at::Tensor narrow = at::ones({4}, at::kBFloat16), square = at::ones({4, 4}), three = at::ones({3}),
             four = at::ones({4});
  at::Tensor across = square.t(), ints = at::ones({4}, at::kLong);
  EXPECT_DEATH((void)local.AllReduceSum("gradients", narrow), "gradients: sums are of float32.*BFloat16");
  EXPECT_DEATH((void)local.ReduceScatterSum("gradients", narrow, narrow), "gradients: sums are of float32");
  EXPECT_DEATH((void)local.AllReduceSum("gradients", across), "gradients: .*contiguous");
  EXPECT_DEATH((void)local.AllGather("weights", three, four), "weights: one part for each of 1 ranks");
  EXPECT_DEATH((void)local.AllGather("weights", ints, four), "weights: Long and Float");
  EXPECT_DEATH((void)local.Broadcast("weights", four, 1), "weights: no rank 1 of 1");
  EXPECT_DEATH((void)local.Send("keys", four, 0), "rank 0 of 1 has no peer 0");
  at::Tensor gathered = at::ones({4});
  EXPECT_DEATH(local.StartAllGather("weights", four, gathered), "all-gather weights was started and not waited for");
}

}  // namespace
}  // namespace stemma::testing
