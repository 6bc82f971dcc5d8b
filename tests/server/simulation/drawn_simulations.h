// Drawn questions to the simulator, and the plans that it runs for them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mesh.h"
#include "server/planner/memory_division.h"
#include "server/simulation/simulation.h"
#include "server/simulation/step_programs.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

constexpr double kSame = 1e-9;  // sums of the same numbers in another order

inline double SumOf(const AxisSeconds& seconds) { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

inline void SetLinks(double byte_s, double message_s, Rates& rates) {
  for (const LinkRates& link : kLinkRates) {
    rates[link.byte] = byte_s;
    rates[link.message] = message_s;
  }
}

inline PlannerRequest DrawRequest(Draw& draw, int64_t groups) {
  PlannerRequest request;
  for (int64_t g = 0; g < groups; ++g) {
    PlannerGroup& group = request.groups.emplace_back();
    group.uid = absl::StrCat("g", g);
    group.prompt_tokens = draw.Between(1, 1500);
    for (int64_t i = draw.Between(1, 12); i > 0; --i) {
      group.rollouts.push_back({draw.Between(1, 500), draw.Between(0, 9) > 0});
    }
  }
  request.mini_batch_groups = draw.Between(0, 1) * draw.Between(1, 8);
  request.epochs = draw.Between(1, 2);
  request.log_prob_passes = static_cast<int>(draw.Between(0, 2));
  return request;
}

class DrawnSimulationTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  DrawnSimulationTest() : draw_(FirstSeed() + GetParam()) {
    MeshQuestion& asked = question_.mesh_question;
    asked.config = BenchModel();
    asked.config.max_positions = 4096;
    asked.config.rms_norm_eps = 1e-6;
    asked.run.set_dtype(draw_.Chance(50) ? "fp32" : "bf16");
    asked.run.set_head_chunk_tokens(512);
    asked.run.set_split_groups(v1::SPLIT_AUTO);
    asked.memory = {.device_free_bytes = int64_t{4} << 30, .device_bytes = int64_t{4} << 30};
    asked.rates = [this](const v1::Mesh&, v1::OptimizerResidency) { return rates_; };
    asked.requests = {{"the request", DrawRequest(draw_, draw_.Between(1, 12))}};
    rates_ = BenchRates();
    SetMesh({.dp = static_cast<uint32_t>(draw_.Between(1, 3)),
             .pp = static_cast<uint32_t>(draw_.Between(1, 3)),
             .cp = static_cast<uint32_t>(draw_.Between(1, 2)),
             .tp = static_cast<uint32_t>(draw_.Between(1, 2))});
  }

  void SetMesh(const MeshSizes& sizes) {
    question_.mesh = MakeMesh(sizes);
    question_.mesh_question.ranks = NumRanks(question_.mesh);
  }

  // Asks for copies that share every group that they can, with a wire between copies alone.
  void ShareGroups(const MeshSizes& sizes) {
    SetLinks(0, 0, rates_);
    rates_[kDataByte] = 1e-10;
    rates_[kDataCollective] = 1e-5;
    SetMesh(sizes);
    MeshQuestion& asked = question_.mesh_question;
    asked.run.set_split_groups(v1::SPLIT_ON);
    asked.requests.front().request = DrawRequest(draw_, 4);
    asked.requests.front().request.log_prob_passes = 0;
  }

  SimulationAnswer Answer() const {
    const auto answer = Simulate(question_);
    EXPECT_TRUE(answer.ok()) << Where() << answer.status();
    return answer.ok() ? *answer : SimulationAnswer{};
  }

  // The plan that the simulator runs.
  PlanResult Plan(PlannerModel* used = nullptr) const {
    const auto model = ModelOnMesh(question_.mesh_question, question_.mesh);
    EXPECT_TRUE(model.ok()) << Where() << model.status();
    if (used != nullptr) *used = *model;
    auto plan = MakePlan(*model, question_.mesh_question.requests.front().request);
    EXPECT_TRUE(plan.ok()) << Where() << plan.status();
    return *std::move(plan);
  }

  // A step of a plan, or its log-prob pass.
  struct PlannedStep {
    MemoryOptions options;
    const v1::StepPlan& step;
    const v1::StepReport& report;
  };
  std::vector<PlannedStep> StepsOf(const PlannerModel& model, const PlanResult& plan) const {
    const auto options = [&](bool forward_only) {
      return MemoryOptionsOf(model.config, model.run, model.rates, forward_only);
    };
    std::vector<PlannedStep> steps;
    const int passes = question_.mesh_question.requests.front().request.log_prob_passes > 0 ? 1 : 0;
    if (passes > 0) steps.push_back({options(true), plan.plan.log_prob_pass(), plan.report.steps(0)});
    for (int i = 0; i < plan.plan.steps_size(); ++i) {
      steps.push_back({options(false), plan.plan.steps(i), plan.report.steps(passes + i)});
    }
    return steps;
  }

  server::StepPrograms Programs(const PlannerModel& model, const PlannedStep& planned) const {
    const std::vector<PlannerGroup>& groups = question_.mesh_question.requests.front().request.groups;
    return server::ProgramsOf(planned.options, model, groups, planned.step);
  }

  static double EndSeconds(const std::vector<SimulatedRank>& ranks) {
    double end_s = 0;
    for (const SimulatedRank& rank : ranks) end_s = std::max(end_s, rank.end_s);
    return end_s;
  }
  double EndSeconds(const PlannerModel& model, const PlannedStep& planned) const {
    return EndSeconds(RunPrograms(Programs(model, planned).programs));
  }

  // Expects that the parts of an answer's seconds are all of them.
  void ExpectParts(const SimulationAnswer& answer) const {
    const StepSeconds& s = answer.seconds;
    const double pass_s = s.compute_s + SumOf(s.wire_s) + SumOf(s.wait_s) + s.imbalance_s;
    EXPECT_NEAR(pass_s, s.pass_s, kSame * s.pass_s) << Where();
    EXPECT_NEAR(pass_s + s.reduction_s + s.agreement_s + s.apply_s + s.gathering_s, s.total_s, kSame * s.total_s);
    for (size_t axis = 0; axis < kNumAxes; ++axis) {
      EXPECT_GE(s.hidden_s[axis], 0);
      EXPECT_GE(s.wait_s[axis], 0);
    }
  }

  std::string Where() const {
    return absl::StrCat("STEMMA_SEED ", FirstSeed() + GetParam(), ", ", MeshText(question_.mesh), ": ");
  }

  Draw draw_;
  Rates rates_;
  SimulationQuestion question_;
};

}  // namespace stemma::testing
