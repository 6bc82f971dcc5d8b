// How many optimizer steps a request makes: what the server's limit is held to, and a replay counts by.
#include "common/admission/mini_batches.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace stemma {
namespace {

v1::UpdateHeader HeaderOf(uint32_t mini_batch, uint32_t epochs) {
  v1::UpdateHeader header;
  if (mini_batch > 0) header.set_ppo_mini_batch_size(mini_batch);
  if (epochs > 0) header.set_ppo_epochs(epochs);
  return header;
}

TEST(NumStepsTest, AnEpochsLastStepMayBeShorter) {
  EXPECT_EQ(NumSteps(HeaderOf(0, 0), 5), 1u);
  EXPECT_EQ(NumSteps(HeaderOf(0, 3), 5), 3u);
  EXPECT_EQ(NumSteps(HeaderOf(2, 0), 5), 3u);
  EXPECT_EQ(NumSteps(HeaderOf(2, 4), 4), 8u);
  EXPECT_EQ(NumSteps(HeaderOf(9, 2), 4), 2u);
}

TEST(NumStepsTest, NoGroupsAreNoSteps) {
  EXPECT_EQ(NumSteps(HeaderOf(0, 7), 0), 0u);
  EXPECT_EQ(NumSteps(HeaderOf(3, 7), 0), 0u);
}

TEST(NumStepsTest, MoreThanFitAreTheMostThatFit) {
  constexpr uint64_t kMost = uint64_t{1} << 63;
  EXPECT_EQ(NumSteps(HeaderOf(1, UINT32_MAX), UINT64_MAX), kMost);
  EXPECT_EQ(NumSteps(HeaderOf(1, UINT32_MAX), uint64_t{1} << 40), kMost);
  EXPECT_EQ(NumSteps(HeaderOf(1, UINT32_MAX), uint64_t{1} << 31), (uint64_t{1} << 31) * UINT32_MAX);
}

}  // namespace
}  // namespace stemma
