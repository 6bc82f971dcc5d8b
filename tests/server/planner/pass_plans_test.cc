// Plans of forward-only passes that read a checkpoint's weights: these lie on the device beside what the pass computes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <regex>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/cost/state_bytes.h"
#include "server/planner/planner.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/testing/draw.h"

namespace stemma::server {
namespace {

using testing::BenchModel;

// Returns the number in "raise memory_budget_bytes by N".
int64_t BytesToRaise(const absl::Status& status) {
  const std::string text(status.message());
  std::smatch found;
  if (!std::regex_search(text, found, std::regex("raise memory_budget_bytes by ([0-9]+)$"))) ADD_FAILURE() << text;
  return found.empty() ? 0 : std::stoll(found[1]);
}

class PassPlansTest : public ::testing::Test {
 protected:
  int64_t Below(int64_t end) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(end)); }

  PlannerModel Model(int64_t activation_bytes) const {
    PlannerModel model;
    model.config = BenchModel();
    model.run.set_dtype("fp32");
    model.run.set_head_chunk_tokens(512);
    model.run.set_memory_budget_bytes(static_cast<uint64_t>(state_.device(v1::DEVICE) + activation_bytes));
    return model;
  }

  // An update with one or two passes, or a ComputeLogProb.
  PlannerRequest DrawRequest() {
    PlannerRequest request;
    for (int64_t g = 1 + Below(9); g > 0; --g) {
      PlannerGroup& group = request.groups.emplace_back();
      group.uid = absl::StrCat("g", g);
      group.prompt_tokens = 1 + Below(900);
      for (int64_t r = 1 + Below(6); r > 0; --r) {
        group.rollouts.push_back({1 + Below(300)});
      }
    }
    request.forward_only = Below(2) == 0;
    request.log_prob_passes = request.forward_only ? 0 : static_cast<int>(1 + Below(2));
    request.mini_batch_groups = request.forward_only ? 0 : Below(4);
    return request;
  }

  const uint64_t seed_ = testing::FirstSeed();
  std::mt19937_64 random_{seed_};
  const StateBytes state_ = StateBytesOf(BenchModel(), RunDtype::kFp32);
};

// For every request and budget: the pass fits with the weights, or the request is refused.
TEST_F(PassPlansTest, APassThatReadsACheckpointFitsTheBudgetWithItsWeights) {
  int planned = 0, refused = 0, without_room = 0;
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", seed_, " request ", i));
    const int64_t budget = state_.weights / 2 + Below(2 * state_.weights);
    const PlannerModel model = Model(budget);
    PlannerRequest request = DrawRequest();
    request.reads_checkpoint = true;
    const auto plan = MakePlan(model, request);
    if (!plan.ok()) {
      EXPECT_EQ(ErrorReason(plan.status()), "GROUP_TOO_LARGE");
      const std::string beside = absl::StrCat(" beside ", state_.weights, " that a checkpoint's weights");
      EXPECT_TRUE(!request.forward_only || absl::StrContains(plan.status().message(), beside)) << plan.status();
      ++refused;
      // Each group may say once that it needs more than the ones before it.
      absl::Status status = plan.status();
      int64_t raised = budget;
      for (size_t told = 0; !status.ok() && told < request.groups.size(); ++told) {
        raised += BytesToRaise(status);
        status = MakePlan(Model(raised), request).status();
      }
      EXPECT_TRUE(status.ok()) << budget << " raised to " << raised << ": " << status;
      continue;
    }
    ++planned;
    const auto peak = static_cast<int64_t>(plan->report.steps(0).peak_bytes());
    EXPECT_LE(peak, budget);
    EXPECT_GT(peak, state_.weights);
    EXPECT_EQ(plan->report.checkpoint_weights_bytes(), static_cast<uint64_t>(state_.weights));
    request.reads_checkpoint = false;
    const auto own = MakePlan(model, request);
    ASSERT_TRUE(own.ok()) << own.status();
    EXPECT_EQ(own->report.checkpoint_weights_bytes(), 0u);
    without_room += static_cast<int64_t>(own->report.steps(0).peak_bytes()) + state_.weights > budget ? 1 : 0;
  }
  EXPECT_GT(planned, 20);
  EXPECT_GT(refused, 20);
  EXPECT_GT(without_room, 0) << "control: a plan that does not know of the weights leaves them no room";
}

TEST_F(PassPlansTest, EachPassIsCountedAndTheStepsAreAsWithout) {
  for (int i = 0; i < 100; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", seed_, " request ", i));
    const PlannerModel model = Model(int64_t{8} << 30);
    PlannerRequest request = DrawRequest();
    request.forward_only = false;
    request.log_prob_passes = 1;
    const PlanResult once = *MakePlan(model, request);
    request.log_prob_passes = 2;
    request.reads_checkpoint = true;
    const PlanResult twice = *MakePlan(model, request);
    const v1::StepReport& pass = twice.report.steps(0);
    EXPECT_EQ(twice.report.log_prob_passes(), 2u);
    EXPECT_EQ(twice.report.num_waves(), once.report.num_waves() + pass.num_waves());
    EXPECT_EQ(twice.report.tokens_computed(), once.report.tokens_computed() + pass.tokens_computed());
    ASSERT_EQ(twice.plan.steps_size(), once.plan.steps_size());
    for (int k = 0; k < once.plan.steps_size(); ++k) {
      EXPECT_EQ(twice.plan.steps(k).SerializeAsString(), once.plan.steps(k).SerializeAsString());
    }
  }
}

}  // namespace
}  // namespace stemma::server
