// How the ranks that hold one copy of the model begin, stop and fail together, who of them speaks, and what a step of
// them moves. The numbers of a step are tests/schedule/tensor_parallel_test.py's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/status_matchers.h"
#include "tests/testing/thread_communicator.h"
#include "tests/worker/engine/small_engine.h"
#include "worker/engine/copy_agreement.h"

namespace stemma::testing {
namespace {

using ::testing::HasSubstr;
using worker::AgreeInCopy;
using worker::EndChecks;
using worker::InsideCopy;

class TensorParallelRanksTest : public CopyRanksTest {
 protected:
  static InProcessOptions Options(uint32_t dp, uint32_t tp) {
    InProcessOptions options;
    options.run.mutable_mesh()->set_dp(dp);
    options.run.mutable_mesh()->set_tp(tp);
    options.cluster_per_group = true;
    return options;
  }
};

// Every rank has the loss, but one of a copy tells it; each element of the gradient is counted by one rank.
TEST_F(TensorParallelRanksTest, OneRankOfACopySpeaks) {
  const auto engine = Make(Options(2, 2)), alone = Make(Options(1, 1));
  ASSERT_TRUE(engine != nullptr && alone != nullptr);
  for (InProcess* run : {engine.get(), alone.get()}) {
    ASSERT_TRUE(run->Load(Request({16, 5, 9, 30})).ok());
    const auto vote = run->Prepare(0);
    ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
  }
  const internal::v1::StepSums& whole = alone->votes()[0].sums();
  uint64_t rows = 0, tokens = 0;
  for (size_t rank = 0; rank < 4; ++rank) {
    const internal::v1::StepSums& sums = engine->votes()[rank].sums();
    EXPECT_EQ(sums.computed_rows() > 0, rank % 2 == 0) << rank;
    EXPECT_EQ(sums.loss_tokens() > 0, rank % 2 == 0) << rank;
    EXPECT_TRUE(rank % 2 == 0 || sums.policy_loss() == 0) << rank;
    EXPECT_GT(engine->votes()[rank].grad_norm_squared(), 0) << rank;
    rows += sums.computed_rows();
    tokens += sums.loss_tokens();
  }
  EXPECT_EQ(rows, whole.computed_rows());
  EXPECT_EQ(tokens, whole.loss_tokens());
}

// A cancel that one rank alone has heard of stops all of its copy where a cluster begins, and leaves nothing behind.
TEST_F(TensorParallelRanksTest, ACancelOfOneRankIsTheCopys) { ExpectACancelOfOneRankIsEveryRanksNo(Options(2, 2)); }

// Copies that share groups: a rank that hears of a cancel from the other rank of its copy, where an exchange comes
// next, gives that exchange up like any other.
TEST_F(TensorParallelRanksTest, ACopyThatStopsTellsThoseThatShareItsGroups) {
  for (const int stopping : {0, 1}) {
    for (int polls = 0;; ++polls) {
      CancelAtPoll cancel(2 * stopping, polls);
      InProcessOptions options = Options(2, 2);
      options.split = {.seed = 5, .ranks = 2};
      options.edit_hooks = cancel.Hook();
      const auto engine = Make(options);
      ASSERT_NE(engine, nullptr);
      ASSERT_TRUE(engine->Load(Request({16, 1, 9, 30})).ok());
      const auto vote = engine->Prepare(0);
      ASSERT_TRUE(vote.ok()) << "copy " << stopping << ", poll " << polls << ": " << vote.status();
      EXPECT_EQ(vote->yes(), !cancel.cancelled()) << "copy " << stopping << ", poll " << polls;
      if (!cancel.cancelled()) break;
      ASSERT_LT(polls, 9);
    }
  }
}

// One rank of a copy alone cannot read the weights of the pass before the step, or lacks the weights of its rollouts.
TEST_F(TensorParallelRanksTest, ARankThatCannotBeginLeavesNobodyWaiting) {
  for (const bool in_pass : {true, false}) {
    bool fails = true;
    InProcessOptions options = Options(1, 2);
    options.edit_prepare = [&](int rank, internal::v1::Prepare& prepare) {
      if (rank == 0 || !fails) return;
      in_pass ? prepare.mutable_pass_weights(0)->set_checkpoint("nowhere") : prepare.clear_rollout_weights();
    };
    const auto engine = Make(options);
    ASSERT_NE(engine, nullptr);
    TrainingRequest request = Request({16, 5});
    request.update.mutable_loss()->set_loss_mode("importance_sampling");
    request.update.mutable_old()->set_from(v1::LogProbSource::WEIGHTS);
    request.update.mutable_old()->set_weights("policy");
    ASSERT_TRUE(engine->Load(std::move(request)).ok());
    const auto no = engine->Prepare(0);
    ASSERT_TRUE(no.ok()) << no.status();
    EXPECT_THAT(no->message(), HasSubstr(in_pass ? "nowhere" : "rollout_weights"));
    EXPECT_EQ(engine->votes()[0].no_reason(), internal::v1::PEER) << in_pass;
    EXPECT_EQ(engine->votes()[1].no_reason(), in_pass ? internal::v1::DAMAGED_CHECKPOINT : internal::v1::INTERNAL)
        << in_pass;
    fails = false;
    const auto vote = engine->Prepare(0);
    EXPECT_TRUE(vote.ok() && vote->yes()) << vote.status();
  }
}

// Bad tokens are seen by all ranks of a copy alike; the other copy's step is refused with it.
TEST_F(TensorParallelRanksTest, ABadPayloadIsANoOfEveryRank) {
  TrainingRequest bad = Request({16, 5, 9, 30});
  const auto token = static_cast<int32_t>(vocab());
  bad.groups[2].mutable_prompt_tokens()->replace(0, sizeof(token), reinterpret_cast<const char*>(&token),
                                                 sizeof(token));
  ExpectABadTokenIsEveryRanksNo(Options(2, 2), std::move(bad));
}

// Out of memory in the middle of a layer, where the other rank waits: both end, as their processes would.
TEST_F(TensorParallelRanksTest, ARankThatFailsInsideALayerEndsTheGeneration) {
  class FailsOnce final : public worker::RankTensorParallel {
   public:
    using RankTensorParallel::RankTensorParallel;
    at::Tensor SumRows(const at::Tensor& partial_TD) const override {
      if (rank() == 1 && ++calls_ == 3) throw c10::OutOfMemoryError({"test", "here", 0}, "no memory");
      return RankTensorParallel::SumRows(partial_TD);
    }

   private:
    mutable int calls_ = 0;
  };
  InProcessOptions options = Options(1, 2);
  options.make_tensor_parallel = [](Communicator& tp) { return std::make_unique<FailsOnce>(tp); };
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(Request({16, 5})).ok());
  const auto vote = engine->Prepare(0);
  EXPECT_THAT(vote.status(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("tp.0")));
}

TEST(CopyAgreementTest, OneRanksErrorIsEverybodys) {
  auto ranks = MakeThreadRanks(3, absl::Minutes(1), "tp.0");
  std::vector<absl::Status> ended(3);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const absl::Status own = rank == 1 ? absl::NotFoundError("no such checkpoint") : absl::OkStatus();
      ended[rank] = AgreeInCopy({.tp = ranks[rank].get()}, "pass", own);
      EXPECT_EQ(AgreeInCopy({.tp = ranks[rank].get()}, "pass", absl::OkStatus()), absl::OkStatus());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended[1].code(), absl::StatusCode::kNotFound);
  for (const size_t rank : {0, 2}) EXPECT_EQ(ended[rank].code(), absl::StatusCode::kAborted);
}

TEST(CopyAgreementTest, WhatARankFailsInAloneIsUnavailable) {
  auto ranks = MakeThreadRanks(2, absl::Minutes(1), "tp.0"), one = MakeThreadRanks(1, absl::Minutes(1), "tp.0");
  for (const absl::Status& alone : {absl::ResourceExhaustedError("no memory"), absl::InternalError("a bug")}) {
    EXPECT_THAT(InsideCopy({.tp = ranks[0].get()}, alone),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr(alone.message().data())));
    EXPECT_EQ(InsideCopy({.tp = one[0].get()}, alone), alone);
  }
  for (const absl::Status& common :
       {absl::OkStatus(), absl::InvalidArgumentError("the plan"), absl::AbortedError("x")}) {
    EXPECT_EQ(InsideCopy({.tp = ranks[0].get()}, common), common);
  }
}

// Before a pass nobody waits for the rank that has no memory, if they speak about it first.
TEST(CopyAgreementTest, OutOfMemoryBeforeAPassIsTheRequestsAnswerWhereRanksAgree) {
  auto ranks = MakeThreadRanks(2, absl::Minutes(1), "pp.0");
  const absl::Status full = absl::ResourceExhaustedError("no memory");
  absl::Status other;
  std::thread thread([&] { other = EndChecks({.pp = ranks[1].get()}, true, absl::OkStatus()); });
  EXPECT_EQ(EndChecks({.pp = ranks[0].get()}, true, full), full);
  thread.join();
  EXPECT_EQ(other.code(), absl::StatusCode::kAborted) << other;
  EXPECT_EQ(EndChecks({.pp = ranks[0].get()}, false, full).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(EndChecks({.pp = ranks[0].get()}, false, absl::OkStatus()), absl::OkStatus());
}

}  // namespace
}  // namespace stemma::testing
