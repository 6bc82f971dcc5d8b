// How ranks that divide parameters speak, stop and fail together, what they count and hold, and what their gathering
// hides. The numbers of a step are tests/schedule/sharded_test.py's.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/cost/state_bytes.h"
#include "server/planner/parameter_sweeps.h"
#include "tests/testing/clear_sweeps.h"
#include "tests/worker/engine/small_engine.h"
#include "worker/model/sharded_units.h"

namespace stemma::testing {
namespace {

using ::testing::HasSubstr;

class ShardedRanksTest : public CopyRanksTest {
 protected:
  static InProcessOptions Options(const MeshSizes& sizes) {
    InProcessOptions options;
    *options.run.mutable_mesh() = MakeMesh(sizes);
    options.run.set_shard_parameters(v1::SHARD_PARAMETERS_ON);
    options.cluster_per_group = true;
    options.placement_seed = 5;
    return options;
  }

  // Each rank keeps a part of every parameter, and the parts are those of a run that nothing has disturbed.
  static void ExpectSameShards(const InProcess& a, const InProcess& b, int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (size_t i = 0; i < a.weights(rank).parameters.size(); ++i) {
        const Parameter &of_a = a.weights(rank).parameters[i], &of_b = b.weights(rank).parameters[i];
        EXPECT_TRUE(of_a.weight_shard.equal(of_b.weight_shard)) << of_a.name << " of rank " << rank;
      }
    }
  }
};

// What ranks send each other is what the plan says, to the byte.
TEST_F(ShardedRanksTest, SendWhatThePlanSays) {
  for (const MeshSizes& sizes : {MeshSizes{.dp = 2}, MeshSizes{.dp = 3}, MeshSizes{.cp = 2},
                                 MeshSizes{.dp = 2, .pp = 2}, MeshSizes{.dp = 2, .cp = 2}}) {
    for (const char* dtype : {"fp32", "bf16"}) {
      InProcessOptions options = Options(sizes);
      options.cluster_per_group = false;  // the planner's own plan, whose report is of it
      options.placement_seed = 0;
      options.run.set_dtype(dtype);
      options.run.set_reduce_gradients(dtype[0] == 'f' ? v1::REDUCE_GRADIENTS_STEP : v1::REDUCE_GRADIENTS_SWEEP);
      const auto engine = Make(options);
      ASSERT_NE(engine, nullptr);
      ASSERT_TRUE(engine->Load(Request({16, 5, 9, 30})).ok());
      const auto vote = engine->Prepare(0);
      ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
      EXPECT_GT(vote->sums().parameters_bytes(), 0U);
      EXPECT_EQ(vote->sums().parameters_bytes(), engine->plan().report.steps(0).parameters_bytes())
          << MeshText(MakeMesh(sizes)) << " " << dtype;
    }
  }
}

TEST_F(ShardedRanksTest, WholeParametersSendNothingOfThem) {
  InProcessOptions options = Options({.dp = 2});
  options.run.set_shard_parameters(v1::SHARD_PARAMETERS_OFF);
  const auto engine = Make(options);
  ASSERT_TRUE(engine != nullptr && engine->Load(Request({16, 5, 9, 30})).ok());
  const auto vote = engine->Prepare(0);
  ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
  EXPECT_EQ(vote->sums().parameters_bytes(), 0U);
  EXPECT_GT(vote->sums().reduce_bytes(), 0U);
}

// One rank alone hears of a cancel: all copies stop between the same two clusters.
TEST_F(ShardedRanksTest, ACancelOfOneRankIsEveryRanksNo) {
  for (const int cancelled_rank : {0, 1, 3}) {
    for (int polls = 0; polls < 6; polls += 2) {
      CancelAtPoll cancel(cancelled_rank, polls);
      InProcessOptions options = Options({.dp = 2, .tp = 2});
      options.edit_hooks = cancel.Hook();
      const auto engine = Make(options), undisturbed = Make(Options({.dp = 2, .tp = 2}));
      ASSERT_TRUE(engine != nullptr && undisturbed != nullptr);
      ASSERT_TRUE(engine->Load(Request({16, 5, 9, 30})).ok());
      const auto no = engine->Prepare(0);
      ASSERT_TRUE(no.ok()) << no.status();
      ASSERT_EQ(no->yes(), !cancel.cancelled());
      for (int rank = 0; cancel.cancelled() && rank < 4; ++rank) {
        EXPECT_EQ(engine->votes()[static_cast<size_t>(rank)].no_reason(),
                  rank == cancelled_rank ? internal::v1::CANCELLED : internal::v1::PEER)
            << rank;
      }
      cancel.Disarm();
      Step(*engine);
      Step(*undisturbed);
      ExpectSameShards(*engine, *undisturbed, 4);
    }
  }
}

TEST_F(ShardedRanksTest, ABadPayloadIsANoOfEveryRank) {
  TrainingRequest bad = Request({16, 5, 9, 30});
  const auto token = static_cast<int32_t>(vocab());
  bad.groups[2].mutable_rollouts(1)->mutable_response_tokens()->replace(
      4 * sizeof(token), sizeof(token), reinterpret_cast<const char*>(&token), sizeof(token));
  ExpectABadTokenIsEveryRanksNo(Options({.dp = 3}), std::move(bad));
}

// A plan that is wrong on one rank alone is refused by all of them before anything is gathered.
TEST_F(ShardedRanksTest, AWrongPlanOfOneRankIsANoOfEveryRank) {
  bool armed = true;
  InProcessOptions options = Options({.dp = 2});
  options.edit_prepare = [&](int rank, internal::v1::Prepare& prepare) {
    if (armed && rank == 1) prepare.mutable_plan()->mutable_clusters(0)->clear_sweeps();
  };
  const auto engine = Make(options);
  ASSERT_TRUE(engine != nullptr && engine->Load(Request({16, 5, 9, 30})).ok());
  const auto no = engine->Prepare(0);
  ASSERT_TRUE(no.ok()) << no.status();
  EXPECT_FALSE(no->yes());
  EXPECT_THAT(no->message(), HasSubstr("sweeps are missing"));
  armed = false;
  Step(*engine);
}

// Memory that is gone in the middle of a layer leaves the others in a gathering: the generation ends for all of them.
TEST_F(ShardedRanksTest, ARankThatFailsInsideALayerEndsTheGeneration) {
  static std::atomic<int> left;
  static void (*right)(const QkvBackwardOperands&) = nullptr;
  for (const int calls : {0, 3, 5}) {
    left = calls;
    Backend backend = MakeCpuBackend();
    right = backend.kernels.qkv_backward;
    backend.kernels.qkv_backward = [](const QkvBackwardOperands& operands) {
      if (left-- == 0) throw std::bad_alloc();
      right(operands);
    };
    const auto engine = MakeEngine(std::move(backend), Options({.dp = 2}));
    ASSERT_TRUE(engine != nullptr && engine->Load(Request({16, 5, 9, 30})).ok());
    const double begin_s = RealClock().MonotonicSeconds();
    const auto vote = engine->Prepare(0);
    EXPECT_EQ(vote.status().code(), absl::StatusCode::kUnavailable) << vote.status();
    EXPECT_LT(RealClock().MonotonicSeconds() - begin_s, 30) << "a rank waited for one that had gone";
  }
}

// What a copy keeps of its prefixes: a policy, in blocks of so many rows.
struct Kept {
  v1::TapePolicy policy;
  uint32_t block_rows;
};

// A copy whose memory is short runs its prefixes forward again in Phase C. One that keeps them gathers the layers with
// it there, block by block, whichever of the two has more blocks.
TEST_F(ShardedRanksTest, CopiesThatKeepMoreThanOthersJoinWhatThoseRunAgain) {
  InProcessOptions plain;
  plain.run.set_dtype("fp64");
  const auto alone = Make(plain);
  ASSERT_NE(alone, nullptr);
  Step(*alone);
  const Kept whole = {v1::S0, 0}, in_blocks = {v1::S2, 4}, again = {v1::S5, 4}, again_in_two = {v1::S5, 15};
  for (const auto& [first, second] : std::vector<std::pair<Kept, Kept>>{
           {whole, again}, {again, whole}, {in_blocks, again}, {in_blocks, again_in_two}, {again_in_two, in_blocks}}) {
    InProcessOptions options = Options({.dp = 2});
    options.run.set_dtype("fp64");
    options.edit_step = [&](v1::StepPlan& step) {
      ClearSweeps(step);
      for (v1::Cluster& cluster : *step.mutable_clusters()) {
        const Kept& kept = cluster.dp_rank() == 0 ? first : second;
        cluster.set_prefix_policy(kept.policy);
        cluster.set_prefix_block_rows(kept.block_rows);
      }
      server::ShareSweeps(/*prefix_rows=*/{15, 4, 8, 29}, {.copies = 2, .cp_ranks = 1}, step);
    };
    const auto engine = Make(options);
    ASSERT_NE(engine, nullptr);
    Step(*engine);
    for (size_t i = 0; i < alone->weights().parameters.size(); ++i) {
      // Gradients are equal to 1e-14 of their size, and AdamW's first step divides them by it.
      EXPECT_LT(
          at::sub(engine->Master(static_cast<int>(i)), alone->Master(static_cast<int>(i))).abs().max().item<double>(),
          1e-12)
          << i << ": " << first.policy << " and " << second.policy;
    }
  }
}

// A rank with nothing to compute takes part, and says that it is empty.
TEST_F(ShardedRanksTest, ARankWithoutGroupsTakesPart) {
  InProcessOptions options = Options({.dp = 3});
  options.placement_seed = 0;
  const auto engine = Make(options), alone = Make({});
  ASSERT_TRUE(engine != nullptr && alone != nullptr);
  for (InProcess* run : {engine.get(), alone.get()}) {
    ASSERT_TRUE(run->Load(Request({16})).ok());
    const auto vote = run->Prepare(0);
    ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
    EXPECT_FALSE(vote->empty());
    ASSERT_TRUE(run->Apply(0, *vote).ok());
  }
  int empty = 0;
  for (const internal::v1::Vote& vote : engine->votes()) empty += vote.empty();
  EXPECT_EQ(empty, 2);
  for (size_t i = 0; i < alone->weights().parameters.size(); ++i) {
    const at::Tensor sharded = engine->Master(static_cast<int>(i)), whole = alone->Master(static_cast<int>(i));
    // AdamW's first step divides by the gradient's own size: fp32 sums in another order move it by 1e-3 of lr at most.
    EXPECT_LT(at::sub(sharded, whole).abs().max().item<double>(), 1e-6) << i;
  }
}

}  // namespace
}  // namespace stemma::testing
