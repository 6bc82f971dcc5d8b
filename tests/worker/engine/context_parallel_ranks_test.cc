// How the ranks that share the rows and rollouts of one copy of the model speak, stop and fail together. The numbers of
// a step are tests/schedule/context_parallel_test.py's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/status_matchers.h"
#include "tests/testing/thread_communicator.h"
#include "tests/worker/engine/small_engine.h"
#include "worker/engine/entry_log_probs.h"
#include "worker/memory/cpu_allocator.h"
#include "worker/model/context_exchange.h"

namespace stemma::testing {
namespace {

using ::testing::HasSubstr;

class ContextParallelRanksTest : public CopyRanksTest {
 protected:
  static InProcessOptions Options(uint32_t dp, uint32_t cp, uint32_t tp) {
    InProcessOptions options;
    *options.run.mutable_mesh() = MakeMesh({.dp = dp, .cp = cp, .tp = tp});
    options.cluster_per_group = true;
    options.context.seed = 3;
    return options;
  }

  void ExpectRanksSpeakForTheirRows(bool cuts_all) {
    InProcessOptions options = Options(1, 2, 2);
    options.context.cuts_all = cuts_all;
    const auto engine = Make(options), alone = Make(Options(1, 1, 1));
    ASSERT_TRUE(engine != nullptr && alone != nullptr);
    for (InProcess* run : {engine.get(), alone.get()}) {
      ASSERT_TRUE(run->Load(Request({16, 5, 9, 30})).ok());
      const auto vote = run->Prepare(0);
      ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
      EXPECT_EQ(run->results().size(), 8U) << "each rollout once";
    }
    const internal::v1::StepSums& whole = alone->votes()[0].sums();
    uint64_t rows = 0, logical = 0, tokens = 0;
    for (size_t rank = 0; rank < 4; ++rank) {
      const internal::v1::StepSums& sums = engine->votes()[rank].sums();
      EXPECT_EQ(sums.computed_rows() > 0, rank % 2 == 0) << "one of each tp axis, rank " << rank;
      EXPECT_GT(sums.context_parallel_bytes(), 0) << rank;
      rows += sums.computed_rows();
      logical += sums.logical_rows();
      tokens += sums.loss_tokens();
    }
    EXPECT_EQ(rows, whole.computed_rows());
    EXPECT_EQ(logical, whole.logical_rows());
    EXPECT_EQ(tokens, whole.loss_tokens());
    EXPECT_EQ(whole.context_parallel_bytes(), 0);
  }
};

// Each rank counts the rows that it runs and tells of its own rollouts; all together they are one rank's. Of a rollout
// that is cut each counts its rows, and the first tells of it.
TEST_F(ContextParallelRanksTest, EveryRankSpeaksForItsOwnRows) {
  for (const bool cuts_all : {false, true}) {
    SCOPED_TRACE(cuts_all);
    ExpectRanksSpeakForTheirRows(cuts_all);
  }
}

// A cancel that one rank alone has heard of stops its copy where a cluster begins, those too that run nothing of it.
TEST_F(ContextParallelRanksTest, ACancelOfOneRankIsTheCopys) { ExpectACancelOfOneRankIsEveryRanksNo(Options(1, 2, 2)); }

// A cancel while the last cluster runs, of which a rank has no waves: it comes to the same end.
TEST_F(ContextParallelRanksTest, ACancelAtAnyPollLeavesNobodyWaiting) {
  for (int polls = 0; polls < 7; ++polls) {
    CancelAtPoll cancel(1, polls);
    InProcessOptions options = Options(1, 3, 1);
    options.edit_hooks = cancel.Hook();
    const auto engine = Make(options);
    ASSERT_NE(engine, nullptr);
    ASSERT_TRUE(engine->Load(Request({16, 1, 9, 30})).ok());
    const auto vote = engine->Prepare(0);
    ASSERT_TRUE(vote.ok()) << "poll " << polls << ": " << vote.status();
    EXPECT_EQ(vote->yes(), !cancel.cancelled()) << "poll " << polls;
    EXPECT_EQ(cancel.cancelled(), polls < 4) << "each of four clusters asks once";
  }
}

// A rank that runs nothing of the last cluster, which has no prefix, still agrees with the others that it may run.
TEST_F(ContextParallelRanksTest, ARankWithoutWorkInTheLastClusterEndsWithTheOthers) {
  InProcessOptions options = Options(1, 2, 1);
  options.context.seed = 0;
  options.edit_step = [](v1::StepPlan& step) {
    for (v1::Wave& wave : *step.mutable_clusters(1)->mutable_waves()) wave.set_cp_rank(0);
  };
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(Request({16, 1})).ok());
  ASSERT_EQ(engine->plan().plan.steps(0).clusters_size(), 2);
  ASSERT_TRUE(engine->plan().plan.steps(0).clusters(1).prefix_groups().empty());
  const auto vote = engine->Prepare(0);
  EXPECT_TRUE(vote.ok() && vote->yes()) << vote.status();
}

// A rank that runs no wave of a cluster, in a pass without backward, frees its K/V all the same where the cluster ends.
TEST_F(ContextParallelRanksTest, AHotSetWithoutWavesEndsWithItsCluster) {
  InProcessOptions options = Options(1, 2, 1);
  options.context.seed = 0;
  options.lone_rank = true;  // the first of the two
  std::vector<int64_t> bytes;
  options.progress = [&](const internal::v1::Heartbeat& heartbeat) {
    if (heartbeat.phase() == "prefix_forward") bytes.push_back(worker::CpuMemoryStats().current_bytes);
  };
  options.edit_entry_pass = [](v1::StepPlan& pass) {
    SplitClusters(pass, [](uint32_t group) { return group; });
    for (v1::Cluster& cluster : *pass.mutable_clusters()) {
      for (v1::Wave& wave : *cluster.mutable_waves()) wave.set_cp_rank(1);
    }
  };
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  TrainingRequest request = Request({400, 400, 400});
  request.update.mutable_old()->set_from(v1::LogProbSource::WEIGHTS);
  request.update.mutable_old()->set_weights("policy");
  ASSERT_TRUE(engine->Load(std::move(request)).ok());
  ASSERT_TRUE(engine->plan().plan.has_log_prob_pass());
  ASSERT_EQ(engine->plan().plan.log_prob_pass().clusters_size(), 3);
  const auto vote = engine->Prepare(0);
  ASSERT_TRUE(vote.ok()) << vote.status();
  EXPECT_GT(vote->sums().log_probs_s(), 0) << "seconds of the pass";
  ASSERT_GE(bytes.size(), 3U);
  const ModelConfig& model = engine->model();
  const int64_t hot_set = model.num_layers * 399 * 2 * model.kv_size() * 4;
  EXPECT_LT(std::max({bytes[0], bytes[1], bytes[2]}) - std::min({bytes[0], bytes[1], bytes[2]}), hot_set);
}

// A token that no model has, in a rollout that one rank alone would run, is found by all of them.
TEST_F(ContextParallelRanksTest, ABadPayloadIsANoOfEveryRank) {
  TrainingRequest bad = Request({16, 5, 9, 30});
  const auto token = static_cast<int32_t>(vocab());
  bad.groups[2].mutable_rollouts(1)->mutable_response_tokens()->replace(
      4 * sizeof(token), sizeof(token), reinterpret_cast<const char*>(&token), sizeof(token));
  ExpectABadTokenIsEveryRanksNo(Options(2, 2, 1), std::move(bad));
}

// So is a plan that names a rank that there is not.
TEST_F(ContextParallelRanksTest, AWaveOfNobodyIsANoOfEveryRank) {
  InProcessOptions options = Options(1, 2, 1);
  options.edit_step = [](v1::StepPlan& step) { step.mutable_clusters(1)->mutable_waves(0)->set_cp_rank(2); };
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(Request({16, 5, 9, 30})).ok());
  const auto no = engine->Prepare(0);
  ASSERT_TRUE(no.ok()) << no.status();
  EXPECT_THAT(no->message(), HasSubstr("cluster 1, wave 0: cp_rank is 2: there are 2 ranks"));
}

// And one that cuts what cannot be cut.
TEST_F(ContextParallelRanksTest, AWaveThatCannotBeCutIsANoOfEveryRank) {
  InProcessOptions options = Options(1, 2, 1);
  options.context.cuts_all = true;
  options.edit_step = [](v1::StepPlan& step) {
    v1::Wave& wave = *step.mutable_clusters(1)->mutable_waves(0);
    *wave.add_members() = wave.members(0);
  };
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(Request({16, 5, 9, 30})).ok());
  const auto no = engine->Prepare(0);
  ASSERT_TRUE(no.ok()) << no.status();
  EXPECT_THAT(no->message(), HasSubstr("the plan cuts the rows of a wave of 2 members: it has one"));
}

// Out of memory where the other rank waits for the sums of a layer: both end, as their processes would.
TEST_F(ContextParallelRanksTest, ARankThatFailsInsideALayerEndsTheGeneration) {
  class FailsOnce final : public Communicator {
   public:
    explicit FailsOnce(std::unique_ptr<Communicator> right)
        : Communicator(right->axis(), right->rank(), right->size()), right_(std::move(right)) {}

   private:
    worker::StartedCall Start(const worker::CollectiveCall& call) override {
      at::Tensor output = call.output;
      if (call.kind == worker::CollectiveKind::kReduceScatterSum && rank() == 1) {
        throw c10::OutOfMemoryError({"test", "here", 0}, "no memory");
      }
      const absl::Status status = call.kind == worker::CollectiveKind::kReduceScatterSum
                                      ? right_->ReduceScatterSum(call.name, call.input, output)
                                  : call.kind == worker::CollectiveKind::kAllGather
                                      ? right_->AllGather(call.name, call.input, output)
                                      : right_->Agree(call.name, {output.data_ptr<int64_t>(), 1});
      return {[status] { return status; }};
    }

    const std::unique_ptr<Communicator> right_;
  };
  InProcessOptions options = Options(1, 2, 1);
  options.edit_cp_communicator = [](std::unique_ptr<Communicator> right) {
    return std::make_unique<FailsOnce>(std::move(right));
  };
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(Request({16, 5})).ok());
  const auto vote = engine->Prepare(0);
  EXPECT_THAT(vote.status(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cp.0.0")));
}

TEST(EntryLogProbsTest, EveryRankHasWhatOneHasComputed) {
  const std::vector<GroupShape> groups = {{5, {3, 1, 4}}, {2, {2}}};
  v1::StepPlan pass;
  v1::Cluster& cluster = *pass.add_clusters();
  const auto add = [&](uint32_t rank, uint32_t group, uint32_t rollout) {
    v1::Wave& wave = *cluster.add_waves();
    wave.set_cp_rank(rank);
    v1::WaveMember& member = *wave.add_members();
    member.set_group(group);
    member.set_rollout(rollout);
  };
  add(0, 0, 2);
  add(0, 1, 0);
  add(2, 0, 0);  // rank 1 has none, rollout 1 of group 0 does not run
  const EntryLogProbs all = {{{-1, -2, -3}, {}, {-4, -5, -6, -7}}, {{-8, -9}}};
  std::vector<EntryLogProbs> of_ranks(3, {{{}, {}, {}}, {{}}});
  of_ranks[0][0][2] = all[0][2];
  of_ranks[0][1][0] = all[1][0];
  of_ranks[2][0][0] = all[0][0];
  auto ranks = MakeThreadRanks(3, absl::Minutes(1), "cp.0.0");
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      EXPECT_EQ(worker::ShareEntryLogProbs(*ranks[rank], groups, pass, of_ranks[rank]), absl::OkStatus());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const EntryLogProbs& entry : of_ranks) EXPECT_EQ(entry, all);
}

}  // namespace
}  // namespace stemma::testing
