// Ranks that share groups: one that stops in any place leaves nobody waiting, a plan that is wrong is refused, and what
// travels has the bytes of its formula. The numbers of a step are tests/schedule/split_test.py's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/engine/small_engine.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 3;

// Stops one rank in one place of its pass.
struct Stop {
  enum How { kNever, kCancelled, kThrowsBefore, kThrowsWithin, kThrowsAfter };
  How how = kNever;
  int rank = 0;
  int after = 0;  // calls of the hook
};

thread_local bool throws_within = false;  // this rank's operation that has been begun

class SplitRanksTest : public SmallEngineTest {
 protected:
  std::unique_ptr<InProcess> MakeRanks(InProcessOptions options = {}) {
    options.run.mutable_mesh()->set_dp(kRanks);
    options.run.set_wave_suffixes(2);
    options.placement_seed = 1;
    options.split.seed = 5;
    options.edit_hooks = [this](int rank, EngineHooks& hooks) { SetStop(rank, hooks); };
    worker::Backend backend = MakeCpuBackend();
    backend.reset_peak_bytes = [] {  // called where an operation begins
      if (std::exchange(throws_within, false)) throw std::bad_alloc();
      MakeCpuBackend().reset_peak_bytes();
    };
    return MakeEngine(std::move(backend), options);
  }

  // Log-probs of the entry weights are needed, so that there is a pass before the step's.
  static TrainingRequest SplitRequest() {
    TrainingRequest request = SyntheticRequest({16, 5, 9, 2}, {8, 3, 5, 8}, vocab());
    v1::LossConfig& loss = *request.update.mutable_loss();
    loss.set_loss_mode("importance_sampling");
    request.update.mutable_old()->set_from(v1::LogProbSource::WEIGHTS);
    request.update.mutable_old()->set_weights("policy");
    request.update.mutable_adam()->set_learning_rate(1e-3);
    request.update.mutable_adam()->set_eps(1e-8);
    return request;
  }

  static int SplitGroups(const v1::StepPlan& step) {
    int groups = 0;
    for (const v1::Cluster& cluster : step.clusters()) groups += cluster.helper_ranks_size() > 0 ? 1 : 0;
    return groups;
  }

  static std::vector<at::Tensor> Gradients(const InProcess& engine) {
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i < engine.weights().parameters.size(); ++i) {
      gradients.push_back(engine.Gradient(static_cast<int>(i)));
    }
    return gradients;
  }

  static void ExpectSame(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, const std::string& when) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << "parameter " << i << ", " << when;
  }

  // The rank that stopped says why and the others do not; the step after it has the right bits.
  void ExpectStopIsTheAnswer(InProcess& engine, const std::vector<at::Tensor>& right, const std::string& when) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const internal::v1::Vote& vote = engine.votes()[static_cast<size_t>(rank)];
      EXPECT_FALSE(vote.yes()) << when;
      const auto own = stop_.how == Stop::kCancelled ? internal::v1::CANCELLED : internal::v1::OUT_OF_MEMORY;
      EXPECT_EQ(vote.no_reason(), rank == stop_.rank ? own : internal::v1::PEER) << "rank " << rank << ", " << when;
    }
    stop_ = {};
    const auto vote = engine.Prepare(0);
    ASSERT_TRUE(vote.ok() && vote->yes()) << when << ": " << vote.status();
    ExpectSame(Gradients(engine), right, when);
  }

  Stop stop_;  // written between steps
  std::atomic<bool> stopped_{false};

 private:
  void SetStop(int rank, EngineHooks& hooks) {
    if (stop_.how == Stop::kNever || rank != stop_.rank) return;
    const auto count = std::make_shared<int>(0);
    const auto now = [this, count] {
      const bool here = (*count)++ == stop_.after;
      if (here) stopped_ = true;
      return here;
    };
    if (stop_.how == Stop::kThrowsAfter) {
      hooks.progress = [now](const internal::v1::Heartbeat&) {
        if (now()) throw std::bad_alloc();
      };
      return;
    }
    hooks.cancelled = [now, how = stop_.how] {
      if (!now()) return false;
      if (how == Stop::kThrowsBefore) throw std::bad_alloc();
      throws_within = how == Stop::kThrowsWithin;
      return how == Stop::kCancelled;
    };
  }
};

// Every operation of every rank's passes is once the last one: in the pass before the step, in Phase A, before and
// after every exchange, in every wave, of owners and of helpers.
TEST_F(SplitRanksTest, ARankThatStopsAnywhereLeavesNobodyWaiting) {
  const auto engine = MakeRanks();
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(SplitRequest()).ok());
  ASSERT_GE(SplitGroups(engine->plan().plan.steps(0)), 3);
  ASSERT_GE(SplitGroups(engine->plan().plan.log_prob_pass()), 3);
  const auto vote = engine->Prepare(0);
  ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
  const std::vector<at::Tensor> right = Gradients(*engine);
  int stops = 0;
  for (const Stop::How how : {Stop::kCancelled, Stop::kThrowsBefore, Stop::kThrowsWithin, Stop::kThrowsAfter}) {
    for (int rank = 0; rank < kRanks; ++rank) {
      for (int after = how % 3;; after += 3) {
        const std::string when = absl::StrCat("way ", how, " of rank ", rank, " after ", after, " operations");
        stop_ = {how, rank, after};
        stopped_ = false;
        const auto no = engine->Prepare(0);
        ASSERT_TRUE(no.ok()) << when << ": " << no.status();
        if (!stopped_) break;
        ++stops;
        EXPECT_EQ(no->message().rfind(absl::StrCat("rank ", rank, ": "), 0), 0u) << when << ": " << no->message();
        ASSERT_NO_FATAL_FAILURE(ExpectStopIsTheAnswer(*engine, right, when));
      }
    }
  }
  EXPECT_GE(stops, kRanks * 15) << "places to stop at";
}

// What a rank that has stopped takes of the others is as large as what they send: K/V in the run's dtype, gK/gV in that
// of sums.
TEST_F(SplitRanksTest, ARankThatStopsTakesWhatOthersStillSend) {
  InProcessOptions options;
  options.run.set_dtype("bf16");
  const auto engine = MakeRanks(options);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(SyntheticRequest({16, 5, 9, 2}, {8, 3, 5, 8}, vocab())).ok());
  ASSERT_GE(SplitGroups(engine->plan().plan.steps(0)), 3);
  const auto vote = engine->Prepare(0);
  ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
  const std::vector<at::Tensor> right = Gradients(*engine);
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int after = 0;; after += 2) {
      stop_ = {Stop::kCancelled, rank, after};
      stopped_ = false;
      ASSERT_TRUE(engine->Prepare(0).ok()) << "rank " << rank << " after " << after << " operations";
      if (!stopped_) break;
    }
  }
  stop_ = {};
  ASSERT_TRUE(engine->Prepare(0).ok());
  ExpectSame(Gradients(*engine), right, "when all have stopped once");
}

// The first pass has other weights than the second one, which only one rank cannot read, or neither pass has.
TEST_F(SplitRanksTest, ARankThatCannotReadTheWeightsOfAPassLeavesNobodyWaiting) {
  int fails = -1, pass = 0;
  InProcessOptions options;
  options.edit_prepare = [&](int rank, internal::v1::Prepare& prepare) {
    ASSERT_EQ(prepare.pass_weights_size(), 2);
    if (rank == fails) prepare.mutable_pass_weights(pass)->set_checkpoint("nowhere");
  };
  const auto engine = MakeRanks(options);
  ASSERT_NE(engine, nullptr);
  TrainingRequest request = SplitRequest();
  request.update.mutable_ref()->set_from(v1::LogProbSource::WEIGHTS);
  request.update.mutable_ref()->set_weights("start");
  request.update.mutable_loss()->set_kl_loss_coef(0.5);
  request.update.mutable_loss()->set_kl_loss_type("k3");
  ASSERT_TRUE(engine->Load(std::move(request)).ok());
  ASSERT_GE(SplitGroups(engine->plan().plan.log_prob_pass()), 3);
  const auto vote = engine->Prepare(0);
  ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
  const std::vector<at::Tensor> right = Gradients(*engine);
  for (fails = 0; fails < kRanks; ++fails) {
    for (pass = 0; pass < 2; ++pass) {
      const std::string when = absl::StrCat("rank ", fails, ", pass ", pass);
      const int failing = fails;
      const auto no = engine->Prepare(0);
      ASSERT_TRUE(no.ok()) << when << ": " << no.status();
      EXPECT_THAT(no->message(), HasSubstr(absl::StrCat("rank ", failing, ": "))) << when;
      EXPECT_THAT(no->message(), HasSubstr("nowhere")) << when;
      for (int rank = 0; rank < kRanks; ++rank) {
        EXPECT_EQ(engine->votes()[static_cast<size_t>(rank)].no_reason(),
                  rank == failing ? internal::v1::DAMAGED_CHECKPOINT : internal::v1::PEER)
            << "rank " << rank << ", " << when;
      }
      fails = -1;
      const auto again = engine->Prepare(0);
      ASSERT_TRUE(again.ok() && again->yes()) << when << ": " << again.status();
      ExpectSame(Gradients(*engine), right, when);
      fails = failing;
    }
  }
}

TEST_F(SplitRanksTest, ABadTokenOfASplitGroupIsTheAnswerOfTheRankThatReadsIt) {
  const auto engine = MakeRanks();
  ASSERT_NE(engine, nullptr);
  TrainingRequest bad = SplitRequest();
  const auto token = static_cast<int32_t>(vocab());
  for (v1::PromptGroup& group : bad.groups) {
    group.mutable_rollouts(0)->mutable_response_tokens()->replace(0, sizeof(token),
                                                                  reinterpret_cast<const char*>(&token), sizeof(token));
  }
  ASSERT_TRUE(engine->Load(std::move(bad)).ok());
  const auto no = engine->Prepare(0);
  ASSERT_TRUE(no.ok()) << no.status();
  EXPECT_FALSE(no->yes());
  EXPECT_EQ(no->no_reason(), internal::v1::INTERNAL);
  EXPECT_THAT(no->message(), HasSubstr("holds token"));
}

// What the server never plans; the worker does not run into it.
TEST_F(SplitRanksTest, AWrongPlanIsANoThatNamesItsCluster) {
  const std::vector<std::pair<std::function<void(v1::Cluster&)>, std::string>> cases = {
      {[](v1::Cluster& c) {
         if (c.has_owner_rank()) c.set_prefix_policy(v1::S1);
       },
       "prefix_policy is S1"},
      {[](v1::Cluster& c) {
         if (c.helper_ranks_size() > 0) c.add_helper_ranks(9);
       },
       "helper_ranks is 9"},
      {[](v1::Cluster& c) {
         if (c.helper_ranks_size() > 0) c.add_helper_ranks(c.dp_rank());
       },
       "this rank's own copy"},
  };
  for (const auto& [edit, message] : cases) {
    InProcessOptions options;
    options.edit_step = [edit = edit](v1::StepPlan& step) {
      for (v1::Cluster& cluster : *step.mutable_clusters()) edit(cluster);
    };
    const auto engine = MakeRanks(options);
    ASSERT_NE(engine, nullptr);
    ASSERT_TRUE(engine->Load(SplitRequest()).ok());
    const auto no = engine->Prepare(0);
    ASSERT_TRUE(no.ok()) << message << ": " << no.status();
    EXPECT_FALSE(no->yes());
    EXPECT_EQ(no->no_reason(), internal::v1::INTERNAL);
    EXPECT_THAT(no->message(), HasSubstr(message));
    EXPECT_THAT(no->message(), HasSubstr("the plan's cluster "));
  }
}

// A step that runs a rollout on another rank than the pass before it did.
TEST_F(SplitRanksTest, LogProbsThatAnotherRankHasAreMissedByName) {
  InProcessOptions options;
  options.edit_entry_pass = [](v1::StepPlan& pass) {
    for (v1::Cluster& cluster : *pass.mutable_clusters()) cluster.set_dp_rank(0);
    for (int c = pass.clusters_size() - 1; c >= 0; --c) {
      if (pass.clusters(c).has_owner_rank()) pass.mutable_clusters()->DeleteSubrange(c, 1);
    }
    for (v1::Cluster& cluster : *pass.mutable_clusters()) cluster.clear_helper_ranks();
  };
  const auto engine = MakeRanks(options);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(SplitRequest()).ok());
  const auto no = engine->Prepare(0);
  ASSERT_TRUE(no.ok()) << no.status();
  EXPECT_FALSE(no->yes());
  EXPECT_THAT(no->message(), HasSubstr("log-probs under policy this rank does not have"));
}

class SplitBytesTest : public SplitRanksTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(SplitBytesTest, WhatTravelsHasTheBytesOfItsFormula) {
  const std::string dtype = GetParam();
  InProcessOptions options;
  std::vector<const Communicator*> ranks;
  options.edit_communicator = [&](std::unique_ptr<Communicator> rank) {
    ranks.push_back(rank.get());
    return rank;
  };
  options.run.set_dtype(dtype);
  const auto engine = MakeRanks(options);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(SplitRequest()).ok());
  const auto vote = engine->Prepare(0);
  ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
  const std::vector<int64_t> prompts = {16, 5, 9, 2};
  int64_t helper_rows = 0, pairs = 0;
  for (const v1::Cluster& cluster : engine->plan().plan.steps(0).clusters()) {
    helper_rows +=
        cluster.helper_ranks_size() * (prompts[cluster.prefix_groups_size() > 0 ? cluster.prefix_groups(0) : 0] - 1);
    pairs += cluster.helper_ranks_size();
  }
  ASSERT_GT(pairs, 3);
  const ModelConfig& model = engine->weights().config;
  const int64_t elements = helper_rows * model.num_layers * model.num_kv_heads * model.head_size;
  const int64_t run = dtype == "bf16" ? 2 : dtype == "fp32" ? 4 : 8, accumulate = dtype == "fp64" ? 8 : 4;
  EXPECT_EQ(static_cast<int64_t>(vote->sums().split_bytes()), elements * (2 * run + 2 * accumulate));
  EXPECT_GT(vote->sums().split_s(), 0);
  std::map<std::string, int64_t> bytes;
  for (const Communicator* rank : ranks) {
    for (const auto& [name, totals] : rank->stats().Read()) bytes[name] += totals.bytes;
  }
  // Each is counted where it is sent and where it is received; the pass before the step sent K/V too.
  EXPECT_EQ(bytes["split.k"], 2 * 2 * elements * run);
  EXPECT_EQ(bytes["split.v"], 2 * 2 * elements * run);
  EXPECT_EQ(bytes["split.gk"], 2 * elements * accumulate);
  EXPECT_EQ(bytes["split.gv"], 2 * elements * accumulate);
  EXPECT_EQ(bytes["split.word"], 2 * 3 * pairs * 8);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, SplitBytesTest, ::testing::Values("fp32", "bf16", "fp64"),
                         [](const auto& test) { return test.param; });

TEST_F(SplitRanksTest, ABorrowedPrefixIsCountedOnce) {
  const auto split = MakeRanks();
  InProcessOptions options;
  options.run.set_wave_suffixes(2);
  const auto alone = MakeEngine(MakeCpuBackend(), options);
  ASSERT_TRUE(split != nullptr && alone != nullptr);
  std::vector<internal::v1::Vote> votes;
  for (InProcess* run : {split.get(), alone.get()}) {
    ASSERT_TRUE(run->Load(SplitRequest()).ok());
    const auto vote = run->Prepare(0);
    ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
    votes.push_back(*vote);
  }
  EXPECT_EQ(votes[0].sums().computed_rows(), votes[1].sums().computed_rows());
  EXPECT_EQ(votes[0].sums().logical_rows(), votes[1].sums().logical_rows());
  EXPECT_EQ(votes[1].sums().split_bytes(), 0u);
  EXPECT_EQ(votes[1].sums().split_s(), 0);
}

}  // namespace
}  // namespace stemma::testing
