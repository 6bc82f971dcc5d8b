// What is in the worker's log as a warning, and only then: an operation that takes ten times its prediction, and an
// offloaded tape that host memory has no room for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "glog/logging.h"
#include "tests/worker/engine/small_engine.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;

constexpr double kFloorS = 1;                               // what takes less is not slow
constexpr absl::Duration kSlow = absl::Milliseconds(1100);  // above it

bool& sleeps() {
  static bool value = false;
  return value;
}

void SleepOnceIfTold() {
  if (std::exchange(sleeps(), false)) RealClock().Sleep(kSlow);
}

class SleepyAttention : public CpuAttention {
 public:
  Output Forward(const Call& call) const override {
    SleepOnceIfTold();
    return CpuAttention::Forward(call);
  }
};

void (*look_for_nonfinite)(const FirstNonfiniteOperands&) = nullptr;

Backend SleepyBackend() {
  Backend backend = MakeCpuBackend(std::make_unique<SleepyAttention>());
  look_for_nonfinite = backend.kernels.first_nonfinite;
  backend.kernels.first_nonfinite = [](const FirstNonfiniteOperands& args) {  // called by APPLY
    SleepOnceIfTold();
    look_for_nonfinite(args);
  };
  return backend;
}

class Warnings final : public google::LogSink {
 public:
  Warnings() { google::AddLogSink(this); }
  ~Warnings() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity severity, const char*, const char*, int, const google::LogMessageTime&,
            const char* message, size_t bytes) override {
    if (severity == google::GLOG_WARNING) lines.emplace_back(message, bytes);
  }
  std::vector<std::string> lines;
};

using SlowStepTest = SmallEngineTest;

TEST_F(SlowStepTest, AWarningNamesTheOperationThatWasSlow) {
  const auto engine = MakeEngine(SleepyBackend());
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(Request({1})).ok());  // no prefix: one phase
  Warnings warnings;
  double prepare_s = 0, apply_s = 0;
  const auto step = [&](bool slow_phase, bool slow_apply) {
    sleeps() = slow_phase;
    const double begin_s = RealClock().MonotonicSeconds();
    const auto vote = engine->Prepare(0);
    const double prepared_s = RealClock().MonotonicSeconds();
    ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
    sleeps() = slow_apply;
    ASSERT_TRUE(engine->Apply(0, *vote).ok());
    prepare_s = prepared_s - begin_s;
    apply_s = RealClock().MonotonicSeconds() - prepared_s;
  };
  step(false, false);
  for (const std::string& line : std::exchange(warnings.lines, {})) {  // on a machine that stood still
    EXPECT_GE(line.starts_with("APPLY") ? apply_s : prepare_s, kFloorS) << line;
  }
  step(true, true);
  EXPECT_THAT(warnings.lines,
              ElementsAre(ContainsRegex("^suffix waves of step 2 of request r1 \\(k 0, attempt 2\\) took [0-9]"),
                          ContainsRegex("^APPLY of step 2 of request r1 \\(k 0, attempt 2\\) took [0-9]")));
}

TEST_F(SlowStepTest, AWarningSaysWhatOfAnOffloadedTapeStayedOnTheDevice) {
  for (const uint64_t host_bytes : {uint64_t{4096}, uint64_t{16} << 20}) {
    InProcessOptions options;
    options.run.set_memory_budget_bytes(uint64_t{1} << 30);
    options.run.set_host_memory_bytes(host_bytes);
    options.run.set_optimizer_residency(v1::DEVICE);
    options.edit_step = [](v1::StepPlan& step) {  // the planner offloads what host memory has room for
      for (v1::Cluster& cluster : *step.mutable_clusters()) cluster.set_offload_prefix(true);
    };
    const auto engine = MakeEngine(MakeCpuBackend(), options);
    ASSERT_NE(engine, nullptr);
    ASSERT_TRUE(engine->Load(Request({64})).ok());
    Warnings warnings;
    const auto vote = engine->Prepare(0);
    ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
    if (host_bytes > 4096) {
      EXPECT_TRUE(warnings.lines.empty()) << warnings.lines.front();
    } else {
      ASSERT_EQ(warnings.lines.size(), 1u);
      EXPECT_NE(warnings.lines[0].find("stayed on the device, beyond what the plan says"), std::string::npos)
          << warnings.lines[0];
    }
  }
}

}  // namespace
}  // namespace stemma::testing
