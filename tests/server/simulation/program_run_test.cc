// Programs in simulated time: against hand-made times, and against the replay of drawn pipelines, which is another
// implementation. STEMMA_SEED draws others.
#include "server/simulation/program_run.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/planner/drawn_stages.h"
#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

SimulatedOperation Computes(double seconds) { return {.name = "F", .compute_s = seconds}; }

double SumOfAxes(const AxisSeconds& seconds) { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

// Returns the programs of stages that run these orders; messages take `message_s`.
std::vector<SimulatedProgram> ProgramsOfStages(const StageQuestion& question, const server::StageOrders& orders,
                                               double message_s) {
  std::vector<SimulatedProgram> programs(question.stages);
  const Replay replay(question);
  const auto borders = static_cast<int32_t>(question.stages);
  for (size_t s = 0; s < question.stages; ++s) {
    int32_t forwards = 0, backwards = 0;
    for (const char letter : orders.stages[s].Letters()) {
      const bool forward = letter == 'A' || letter == 'F';
      const auto number = forward ? forwards++ : backwards++;
      const auto& [name, costs] = (forward ? replay.forward() : replay.backward())[static_cast<size_t>(number)];
      const server::StageCost& cost = (*costs)[s];
      SimulatedOperation operation = Computes(forward ? cost.forward_s : cost.backward_s);
      operation.name = std::string(1, name);
      const auto border = static_cast<int32_t>(s);
      const auto message = [&](int32_t at) { return 2 * (number * (borders + 1) + at) + (forward ? 0 : 1); };
      const int32_t in = forward ? border : border + 1, out = forward ? border + 1 : border;
      if (in > 0 && in < borders) operation.needs = message(in);
      if (out > 0 && out < borders) operation.sends = {message(out), message_s, forward};
      programs[s].push_back(std::move(operation));
    }
  }
  return programs;
}

class DrawnProgramsTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  DrawnProgramsTest() : draw_(FirstSeed() + GetParam()) {
    question_ = DrawStages(draw_, static_cast<size_t>(draw_.Between(1, 5)), 4, 6);
    orders_ = OrderStages(question_);
  }
  Draw draw_;
  StageQuestion question_;
  server::StageOrders orders_;
};

TEST_P(DrawnProgramsTest, StagesWithoutAWireRunAsTheirOrdersSay) {
  const auto ranks = RunPrograms(ProgramsOfStages(question_, orders_, /*message_s=*/0));
  for (size_t s = 0; s < ranks.size(); ++s) {
    const server::StageRun& run = orders_.stages[s];
    ASSERT_EQ(ranks[s].spans.size(), run.operations.size());
    for (size_t i = 0; i < run.operations.size(); ++i) {
      EXPECT_EQ(ranks[s].spans[i].begin_s, run.operations[i].begin_s) << "STEMMA_SEED " << FirstSeed() + GetParam();
      EXPECT_EQ(ranks[s].spans[i].end_s, run.operations[i].end_s);
    }
    EXPECT_EQ(ranks[s].compute_s, run.busy_s);
  }
}

TEST_P(DrawnProgramsTest, EachSecondIsOfOneKind) {
  const double message_s = DrawSeconds(draw_, 2);
  const SharedCores shared = {.cores = static_cast<double>(draw_.Between(1, 3))};
  for (const SimulatedRank& rank : RunPrograms(ProgramsOfStages(question_, orders_, message_s), shared)) {
    EXPECT_NEAR(rank.compute_s + SumOfAxes(rank.wire_s) + SumOfAxes(rank.wait_s), rank.end_s, 1e-9 * rank.end_s)
        << "STEMMA_SEED " << FirstSeed() + GetParam();
  }
}

// However slow the wire is, nobody ends sooner; and with one core all that is computed is one behind the other.
TEST_P(DrawnProgramsTest, WiresAndFewCoresOnlyTakeTime) {
  const auto end_s = [&](double message_s, double cores) {
    double last_s = 0;
    for (const auto& rank : RunPrograms(ProgramsOfStages(question_, orders_, message_s), {.cores = cores})) {
      last_s = std::max(last_s, rank.end_s);
    }
    return last_s;
  };
  double all_s = 0;
  for (const server::StageRun& run : orders_.stages) all_s += run.busy_s;
  double before_s = 0;
  for (const double message_s : {0.0, 0.5, 3.0}) {
    EXPECT_GE(end_s(message_s, 64), before_s) << "STEMMA_SEED " << FirstSeed() + GetParam();
    before_s = end_s(message_s, 64);
  }
  EXPECT_NEAR(end_s(0, 1), all_s, 1e-9 * all_s) << "a core that always has work";
  EXPECT_GE(end_s(0, 2) * (1 + 1e-12), std::max(orders_.end_s, all_s / 2));
}

INSTANTIATE_TEST_SUITE_P(Seeds, DrawnProgramsTest, ::testing::Range(0u, 40u));

TEST(ProgramRunTest, AMessageTravelsWhileItsSenderGoesOn) {
  std::vector<SimulatedProgram> programs(2);
  programs[0] = {Computes(2), Computes(5)};
  programs[0][0].sends = {.number = 0, .seconds = 3, .forward = true};
  programs[1] = {Computes(1)};
  programs[1][0].needs = 0;
  const auto ranks = RunPrograms(programs);
  EXPECT_EQ(ranks[0].end_s, 7);
  EXPECT_EQ(ranks[1].end_s, 6);
  EXPECT_EQ(ranks[1].wait_s[kStageAt], 2) << "for the stage that sends it";
  EXPECT_EQ(ranks[1].wire_s[kStageAt], 3) << "for the message on its way";
  EXPECT_EQ(ranks[1].spans[0].begin_s, 5);
}

// Two messages in one direction share the link; one in the other direction has its own.
TEST(ProgramRunTest, MessagesOfOneDirectionTravelOneBehindTheOther) {
  std::vector<SimulatedProgram> programs(2);
  programs[0] = {Computes(1), Computes(1), Computes(1)};
  programs[0][0].sends = {.number = 0, .seconds = 10, .forward = true};
  programs[0][1].sends = {.number = 1, .seconds = 10, .forward = true};
  programs[0][2].sends = {.number = 2, .seconds = 10, .forward = false};
  programs[1] = {Computes(0), Computes(0), Computes(0)};
  for (int32_t i = 0; i < 3; ++i) programs[1][static_cast<size_t>(i)].needs = std::vector<int32_t>{2, 0, 1}.at(i);
  const auto ranks = RunPrograms(programs);
  EXPECT_EQ(ranks[1].spans[0].begin_s, 13) << "the other direction, sent at 3";
  EXPECT_EQ(ranks[1].spans[1].begin_s, 13) << "sent at 1, there at 11";
  EXPECT_EQ(ranks[1].spans[2].begin_s, 21) << "sent at 2, behind the first";
}

TEST(ProgramRunTest, AMessageThatIsThereInTimeHoldsNobody) {
  std::vector<SimulatedProgram> programs(2);
  programs[0] = {Computes(1)};
  programs[0][0].sends = {.number = 0, .seconds = 3, .forward = true};
  programs[1] = {Computes(2), Computes(1)};
  programs[1][1].needs = 0;
  const auto ranks = RunPrograms(programs);
  EXPECT_EQ(ranks[1].wire_s[kStageAt], 2) << "it comes at 4, and is wanted at 2";
  EXPECT_EQ(ranks[1].wait_s[kStageAt], 0);
  programs[1][0].compute_s = 5;
  EXPECT_EQ(RunPrograms(programs)[1].wire_s[kStageAt], 0);
}

TEST(ProgramRunTest, AMeetingWaitsForTheLastAndThenItsWireHoldsAll) {
  std::vector<SimulatedProgram> programs(3);
  for (size_t rank = 0; rank < 3; ++rank) {
    SimulatedOperation operation = Computes(static_cast<double>(1 + 2 * rank));
    operation.wire_s[kDataAt] = 4;
    operation.meeting = 0;
    operation.meeting_axis = Axis::kContext;
    programs[rank] = {operation, Computes(1)};
  }
  const auto ranks = RunPrograms(programs);
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks[rank].end_s, 10);
    EXPECT_EQ(ranks[rank].wait_s[kContextAt], static_cast<double>(4 - 2 * rank));
    EXPECT_EQ(ranks[rank].wire_s[kDataAt], 4);
  }
}

// What a rank sends while another one computes holds nobody beyond that.
TEST(ProgramRunTest, BytesThatTravelBesideOthersComputeAreSentBeforeTheMeeting) {
  std::vector<SimulatedProgram> programs(2);
  for (size_t rank = 0; rank < 2; ++rank) {
    SimulatedOperation operation = Computes(rank == 0 ? 5 : 0);
    operation.wire_s[kDataAt] = rank == 0 ? 1 : 3;
    operation.meeting = 0;
    operation.meeting_axis = Axis::kData;
    operation.meets_last = true;
    programs[rank] = {operation, Computes(1)};
  }
  const auto ranks = RunPrograms(programs);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks[rank].spans[0].end_s, 6);
    EXPECT_EQ(ranks[rank].end_s, 7);
    EXPECT_EQ(ranks[rank].wire_s[kDataAt], rank == 0 ? 1 : 3);
    EXPECT_EQ(ranks[rank].wait_s[kDataAt], rank == 0 ? 0 : 3);
  }
}

// Two ranks of two threads on two cores: half as fast together, and at full speed when one is alone.
TEST(ProgramRunTest, RanksThatShareCoresAreSlowerWhileOthersCompute) {
  const auto ranks = RunPrograms({{Computes(1)}, {Computes(3)}}, {.cores = 2, .threads_per_rank = 2});
  EXPECT_DOUBLE_EQ(ranks[0].end_s, 2);
  EXPECT_DOUBLE_EQ(ranks[1].end_s, 4);
  EXPECT_DOUBLE_EQ(ranks[1].compute_s, 4);
}

TEST(ProgramRunTest, AWireNeedsNoCore) {
  std::vector<SimulatedProgram> programs = {{Computes(2)}, {Computes(0)}};
  programs[1][0].wire_s[kDataAt] = 2;
  const auto ranks = RunPrograms(programs, {.cores = 1});
  EXPECT_EQ(ranks[0].end_s, 2);
  EXPECT_EQ(ranks[1].end_s, 2);
}

TEST(ProgramRunDeathTest, ProgramsThatWaitForEverDie) {
  std::vector<SimulatedProgram> programs(2);
  programs[0] = {Computes(1)};
  programs[1] = {Computes(1)};
  programs[0][0].needs = 0;
  programs[0][0].sends = {.number = 1};
  programs[1][0].needs = 1;
  programs[1][0].sends = {.number = 0};
  EXPECT_DEATH(RunPrograms(programs), "waits for ever in operation 0");
}

}  // namespace
}  // namespace stemma::testing
