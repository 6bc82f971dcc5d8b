#include "worker/engine/step_line.h"

#include <gtest/gtest.h>

namespace stemma::worker {
namespace {

TEST(StepLineTest, SaysPhasesSecondsWavesRowsAndBytes) {
  internal::v1::StepKey key;
  key.set_step(3);
  key.set_request_id("r");
  key.set_attempt(1);
  PassSums sums;
  sums.prefix_forward_s = 0.25;
  sums.suffix_s = 1.5;
  sums.prefix_backward_s = 0.5;
  sums.waves = 4;
  sums.tokens_computed = 1200;
  sums.tokens_logical = 4800;
  sums.suffix_bytes = 12 << 20;
  sums.prefix_forward_bytes = 1 << 20;
  EXPECT_EQ(
      StepLine(key, sums),
      "step 3 of request r (k 0, attempt 1): prefix forward 250 ms, 4 waves 1.50 s, prefix backward 500 ms; 1200 of "
      "4800 rows computed; peak 12.0 MiB above the state");
  sums.waves = 1;
  sums.offload.bytes_out = 1 << 20;
  sums.offload.bytes_in = 1 << 20;
  const std::string line = StepLine(key, sums);
  EXPECT_NE(line.find(", 1 wave 1.50 s"), std::string::npos) << line;
  EXPECT_NE(line.find("; 2.00 MiB copied for offload"), std::string::npos) << line;
}

TEST(StepLineTest, ARankWhoseRowsAnotherCountsNamesNone) {
  PassSums sums;
  sums.prefix_backward_s = 0.5;
  sums.prefix_forward_bytes = 1 << 20;
  const std::string line = StepLine({}, sums);
  EXPECT_NE(line.find("prefix backward 500 ms; peak 1.00 MiB above the state"), std::string::npos) << line;
}

TEST(KeptLineTest, SaysWhatOffloadFoundNoHostMemoryFor) {
  internal::v1::StepKey key;
  key.set_step(3);
  key.set_request_id("r");
  key.set_attempt(1);
  PassSums sums;
  EXPECT_EQ(KeptLine(key, sums), "");
  ResidencyStats of_cluster;
  of_cluster.kept = 1;
  of_cluster.kept_bytes = 2 << 20;
  sums.AddOffload(of_cluster);
  EXPECT_EQ(
      KeptLine(key, sums),
      "step 3 of request r (k 0, attempt 1): 1 entry of the offloaded tape, 2.00 MiB, stayed on the device, beyond "
      "what the plan says: host memory had no room in one piece; raise host_memory_bytes (--host-memory)");
  of_cluster.kept = 2;
  of_cluster.kept_bytes = 10 << 20;
  sums.AddOffload(of_cluster);
  EXPECT_NE(KeptLine(key, sums).find("3 entries of the offloaded tape, 12.0 MiB,"), std::string::npos)
      << KeptLine(key, sums);
}

TEST(SlowLineTest, IsFromTenTimesThePredictionAndASecondOn) {
  internal::v1::StepKey key;
  key.set_step(3);
  key.set_request_id("r");
  key.set_attempt(2);
  EXPECT_EQ(
      SlowLine(key, "APPLY", 15, 1.5),
      "APPLY of step 3 of request r (k 0, attempt 2) took 15.0 s, 10.0x the 1.50 s that its plan predicts: is this "
      "machine overloaded, or out of memory?");
  EXPECT_EQ(SlowLine(key, "APPLY", 14.9, 1.5), "") << "less than ten times";
  EXPECT_NE(SlowLine(key, "APPLY", 1, 1e-6), "");
  EXPECT_EQ(SlowLine(key, "APPLY", 0.99, 1e-6), "") << "below the floor";
  EXPECT_EQ(SlowLine(key, "APPLY", 100, 0), "") << "no prediction";
}

TEST(SlowPhasesTest, EachPhaseIsHeldAgainstItsOwnPrediction) {
  internal::v1::StepKey key;
  PassSums sums;
  sums.prefix_forward_s = 20;
  sums.suffix_s = 30;
  sums.prefix_backward_s = 40;
  v1::PhaseSeconds predicted;
  predicted.set_prefix_forward(2.1);
  predicted.set_suffix(3.1);
  predicted.set_prefix_backward(4.1);
  predicted.set_apply(1e-3);
  EXPECT_TRUE(SlowPhases(key, sums, predicted).empty());
  const std::pair<void (v1::PhaseSeconds::*)(double), const char*> phases[] = {
      {&v1::PhaseSeconds::set_prefix_forward, "prefix forward of step"},
      {&v1::PhaseSeconds::set_suffix, "suffix waves of step"},
      {&v1::PhaseSeconds::set_prefix_backward, "prefix backward of step"}};
  for (const auto& [set, text] : phases) {
    v1::PhaseSeconds less = predicted;
    (less.*set)(1);
    const std::vector<std::string> lines = SlowPhases(key, sums, less);
    ASSERT_EQ(lines.size(), 1u) << text;
    EXPECT_EQ(lines[0].rfind(text, 0), 0u) << lines[0];
  }
}

}  // namespace
}  // namespace stemma::worker
