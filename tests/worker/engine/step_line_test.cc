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

}  // namespace
}  // namespace stemma::worker
