// The calls of all axes stand in one order, though the reduction begins in the middle of the last backward: the ranks'
// calls are recorded and run against each other. On devices two calls in opposite orders on two ranks may hang.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/draw.h"
#include "tests/testing/recording_rank.h"
#include "tests/worker/engine/small_engine.h"

namespace stemma::testing {
namespace {

constexpr size_t kRanksMax = 8;
thread_local size_t this_rank = 0;

// The calls of each rank, in its order, as their axes' names.
using Calls = std::vector<std::deque<std::string>>;

// Runs the ranks' calls against each other, each when all ranks of its axis have it before them. Returns what they wait
// for in a circle; empty: one order fits all.
std::string CircleIn(Calls calls) {
  std::map<std::string, std::set<size_t>> ranks_of;
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    for (const std::string& axis : calls[rank]) ranks_of[axis].insert(rank);
  }
  for (bool passed = true; passed;) {
    passed = false;
    for (const auto& [axis, ranks] : ranks_of) {
      const auto is_next = [&, name = axis](size_t rank) {
        return !calls[rank].empty() && calls[rank].front() == name;
      };
      if (!std::all_of(ranks.begin(), ranks.end(), is_next)) continue;
      for (const size_t rank : ranks) calls[rank].pop_front();
      passed = true;
    }
  }
  std::string circle;
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    if (!calls[rank].empty()) absl::StrAppend(&circle, "rank ", rank, " waits in ", calls[rank].front(), "; ");
  }
  return circle;
}

TEST(CircleTest, OppositeOrdersAreFound) {
  EXPECT_EQ(CircleIn({{"data", "cp", "cp"}, {"data", "cp", "cp"}}), "");
  EXPECT_EQ(CircleIn({{"data", "cp"}, {"cp", "data"}}), "rank 0 waits in data; rank 1 waits in cp; ");
  EXPECT_EQ(CircleIn({{"a", "b"}, {"b", "c"}, {"c", "a"}}),
            "rank 0 waits in a; rank 1 waits in b; rank 2 waits in c; ");
}

class OneOrderTest : public SmallEngineTest {
 protected:
  std::unique_ptr<InProcess> MakeRanks(InProcessOptions options) {
    const InProcessOptions::EditCommunicator record = [this](std::unique_ptr<Communicator> right) {
      const std::string axis = right->axis();
      return MakeRecordingRank(std::move(right), DoneIs::kNever, [this, axis](const std::string& name, bool begins) {
        if (!begins) return;
        calls_[this_rank].push_back(axis);
        names_[this_rank].push_back(name);
      });
    };
    options.edit_communicator = options.edit_cp_communicator = options.edit_tp_communicator = record;
    options.edit_hooks = [](int rank, EngineHooks&) { this_rank = static_cast<size_t>(rank); };
    options.cluster_per_group = true;
    options.bucket_elements = 1;
    return MakeEngine(MakeCpuBackend(), options);
  }

  // Runs a step of groups with these prompts. A prompt of one token has no prefix.
  void Step(InProcess& engine, const std::vector<int64_t>& prompts) {
    ASSERT_TRUE(engine.Load(Request(prompts)).ok());
    calls_.assign(kRanksMax, {});
    names_.assign(kRanksMax, {});
    const auto vote = engine.Prepare(0);
    ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
  }

  // Says of each rank whether its reduction began beside its last backward: "y" or "n".
  static std::string Overlapped(const InProcess& engine) {
    std::string overlapped;
    for (const internal::v1::Vote& vote : engine.votes()) {
      overlapped += vote.sums().reduce_overlapped_s() > 0 ? 'y' : 'n';
    }
    return overlapped;
  }

  // Runs a step of two context-parallel ranks whose second group has these waves: "c" that both cut by rows, or the
  // number of the rank that runs it.
  std::string StepWithLastWaves(const std::string& waves, int64_t last_prompt) {
    InProcessOptions options;
    *options.run.mutable_mesh() = MakeMesh({.cp = 2});
    options.edit_step = [&](v1::StepPlan& step) {
      v1::Cluster& last = *step.mutable_clusters(1);
      EXPECT_EQ(last.prefix_groups_size(), last_prompt > 1 ? 1 : 0);
      last.set_regather_prefix(false);
      last.clear_waves();
      for (uint32_t i = 0; i < 2; ++i) {
        v1::Wave& wave = *last.add_waves();
        wave.set_layout(v1::ONE_BY_ONE);
        wave.set_cut_rows(waves[i] == 'c');
        wave.set_cp_rank(waves[i] == '1' ? 1 : 0);
        wave.add_members()->set_group(1);
        wave.mutable_members(0)->set_rollout(i);
      }
    };
    const auto engine = MakeRanks(options);
    if (engine == nullptr) return "";
    Step(*engine, {16, last_prompt});
    EXPECT_EQ(CircleIn(calls_), "") << waves;
    return Overlapped(*engine);
  }

  Calls calls_ = Calls(kRanksMax), names_ = Calls(kRanksMax);  // each rank's written by its thread
};

// A rank ends with the Phase C of the first cluster, or with a wave that both cut, where the other has a wave more.
TEST_F(OneOrderTest, ARoundBeginsWhereNoOtherRankExchangesRowsBehindIt) {
  EXPECT_EQ(StepWithLastWaves("01", 1), "yy") << "each has a wave of its own";
  EXPECT_EQ(StepWithLastWaves("11", 1), "ny") << "the first ends with Phase C, which the other has in the middle";
  EXPECT_EQ(StepWithLastWaves("c1", 1), "ny") << "the first ends with the wave that both cut";
  EXPECT_EQ(StepWithLastWaves("cc", 1), "yy") << "both end with the same wave";
  EXPECT_EQ(StepWithLastWaves("c1", 9), "yy") << "both end with Phase C";
}

// A round carries a layer's gradients to their owners in the middle of the backward. Those of which tensor-parallel
// ranks have parts are summed before: a round in flight would read them while the sum is written.
TEST_F(OneOrderTest, PartsOfALayersGradientsAreSummedBeforeItsRound) {
  InProcessOptions options;
  *options.run.mutable_mesh() = MakeMesh({.dp = 2, .tp = 2});
  const auto engine = MakeRanks(options);
  ASSERT_NE(engine, nullptr);
  Step(*engine, {16, 5});
  EXPECT_EQ(Overlapped(*engine), "yyyy");
  for (size_t rank = 0; rank < 4; ++rank) {
    const std::deque<std::string>& names = names_[rank];
    const auto round = std::find(names.begin(), names.end(), "gradients");
    ASSERT_NE(round, names.end());
    EXPECT_NE(std::find(names.begin(), round, "partial_gradients"), round) << rank;
  }
}

class DrawnOneOrderTest : public OneOrderTest, public ::testing::WithParamInterface<uint32_t> {};

TEST_P(DrawnOneOrderTest, AllAxesAreCalledInOneOrderOnEveryRank) {
  Draw draw(FirstSeed() + GetParam());
  InProcessOptions options;
  const auto below = [&](int64_t end) { return static_cast<uint32_t>(draw.Between(1, end)); };
  v1::Mesh& mesh = *options.run.mutable_mesh();
  mesh = MakeMesh({.dp = below(2), .pp = 1, .cp = 1 + below(2), .tp = 1});
  if (mesh.cp() == 2 && mesh.dp() == 1) below(2) == 1 ? mesh.set_tp(2) : mesh.set_pp(2);
  options.run.set_wave_suffixes(below(2));
  options.context = {.seed = below(1000), .cuts_all = draw.Chance(30)};
  options.placement_seed = options.stage_seed = below(1000);
  const auto engine = MakeRanks(options);
  ASSERT_NE(engine, nullptr);
  for (int turn = 0; turn < 4; ++turn) {
    std::vector<int64_t> prompts = {16, draw.Chance(50) ? 1 : 5};
    if (draw.Chance(50)) prompts.push_back(draw.Chance(70) ? 1 : 9);
    Step(*engine, prompts);
    EXPECT_EQ(CircleIn(calls_), "") << "seed " << FirstSeed() + GetParam() << ", turn " << turn;
  }
}

INSTANTIATE_TEST_SUITE_P(Drawn, DrawnOneOrderTest, ::testing::Range(0U, 12U));

}  // namespace
}  // namespace stemma::testing
