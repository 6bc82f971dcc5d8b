// A request of thousands of steps in which nothing has a gradient holds up nobody: few rows, all of them forced to disk
// before its answer, and from them a restart has every step.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/protocol/coordinator_state.h"
#include "server/protocol/journal_fold.h"
#include "tests/server/protocol/scenario_plans.h"

namespace stemma::server {
namespace {

constexpr uint64_t kEmptyStepsKept = 4;
constexpr SessionId kEmptyStepsSession = 1;

class EmptyStepsTest : public ::testing::Test {
 protected:
  static CoordinatorOptions Options() {
    CoordinatorOptions options;
    options.lineage_prefix = "L";
    v1::Limits& limits = *options.config.mutable_limits();
    limits.set_requests_in_flight(8);
    limits.set_request_bytes_in_flight(1000);
    limits.set_requests_kept(kEmptyStepsKept);
    return options;
  }

  void SetUp() override {
    Handle(StartEvent{});
    WorkerMessageEvent event = {.session = kEmptyStepsSession, .message = {}};
    event.message.mutable_register_()->set_incarnation("w");
    event.message.mutable_register_()->set_memory_free_bytes(1000);
    Handle(event);
    event.message.mutable_ready();
    Handle(event);
  }

  // Returns the actions, those of a plan that is made at once among them.
  std::vector<Action> Handle(const Event& event) {
    std::vector<Action> actions = state_.Handle(absl::FromUnixSeconds(1000), event).actions;
    std::vector<Action> all;
    for (Action& action : actions) {
      if (const auto* row = std::get_if<JournalAction>(&action)) Fold(*row);
      const auto* plan = std::get_if<PlanAction>(&action);
      if (plan == nullptr) {
        all.push_back(std::move(action));
        continue;
      }
      const PlannedEvent planned = {.id = plan->id,
                                    .plan = std::make_shared<absl::StatusOr<RequestPlan>>(FakePlan(*plan->request, 1))};
      for (Action& next : Handle(planned)) all.push_back(std::move(next));
    }
    return all;
  }

  void Fold(const JournalAction& action) {
    internal::v1::JournalRow row;
    ASSERT_TRUE(row.ParseFromString(action.body));
    const absl::Status folded = FoldRow(row, kEmptyStepsKept, journal_);
    ASSERT_TRUE(folded.ok()) << folded;
  }

  CoordinatorState state_{Options()};
  internal::v1::JournalState journal_;
};

TEST_F(EmptyStepsTest, ThousandsOfThemAreFewRowsBeforeTheAnswer) {
  constexpr int kSteps = 4100;
  const std::vector<Action> actions =
      Handle(SubmitEvent{10, MakeUpdate(Command("submit 10 a steps=" + std::to_string(kSteps) + " empty_from=0"))});
  const auto answer = std::find_if(actions.begin(), actions.end(),
                                   [](const Action& action) { return std::holds_alternative<ReplyAction>(action); });
  ASSERT_NE(answer, actions.end());
  const auto* status = std::get_if<v1::RequestStatus>(&std::get<ReplyAction>(*answer).reply);
  ASSERT_NE(status, nullptr);
  EXPECT_EQ(status->state(), v1::DONE);
  EXPECT_EQ(status->result().steps_size(), kSteps);
  size_t rows = 0;
  for (auto it = actions.begin(); it != actions.end(); ++it) {
    const auto* row = std::get_if<JournalAction>(&*it);
    if (row == nullptr) continue;
    ++rows;
    EXPECT_LT(it - actions.begin(), answer - actions.begin()) << "row " << row->n;
    EXPECT_LT(row->body.size(), 16u << 20);
  }
  EXPECT_EQ(rows, 4u) << "accepted, 4,096 steps, the others, finished";
  ASSERT_EQ(journal_.requests_size(), 1);
  EXPECT_EQ(journal_.requests(0).status().SerializeAsString().size(), status->SerializeAsString().size());
  EXPECT_EQ(journal_.requests(0).status().result().steps_size(), kSteps);
}

}  // namespace
}  // namespace stemma::server
