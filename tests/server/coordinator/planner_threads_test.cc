// What the planner's threads say that they do when they are told to stop and do not: whether a disk is waited for.
#include "server/coordinator/planner_threads.h"

#include <memory>

#include "common/base/flag.h"
#include "gtest/gtest.h"

namespace stemma::server {
namespace {

TEST(PlannerThreadsTest, APlanThatDoesNotEndIsNotTakenForADiskThatHangs) {
  Flag planning, leave;
  PlannerThreads planners(
      [&](const TrainingRequest&, const v1::RunConfig&, const Rates&, const StopCheck& stop) {
        planning.Set();
        EXPECT_TRUE(leave.AwaitWithin(absl::Seconds(60)));
        EXPECT_TRUE(stop());
        return absl::StatusOr<RequestPlan>(absl::CancelledError("planning was stopped"));
      },
      /*storage=*/nullptr, [](const Event&) {});
  planners.Add(PlanAction{.id = 1, .request = std::make_shared<const TrainingRequest>(), .config = {}, .rates = {}});
  ASSERT_TRUE(planning.AwaitWithin(absl::Seconds(60)));
  EXPECT_EQ(planners.StopBy(StopDeadlineIn(absl::Milliseconds(1))), kPlanningRequest);
  leave.Set();
  EXPECT_EQ(planners.StopBy(absl::InfiniteFuture()), "");
}

}  // namespace
}  // namespace stemma::server
