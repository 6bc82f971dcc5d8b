// What is still to be had of a device's memory, by hand.
#include "worker/backend/cuda/cuda_memory.h"

#include <gtest/gtest.h>

#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

using worker::cuda::HeadroomOf;

TEST(CudaMemoryTest, WhatIsStillToBeHadIsTheDriversAndWhatTheAllocatorKeepsWhole) {
  EXPECT_EQ(HeadroomOf({.driver_free = 1000, .reserved = 0, .allocated = 0, .inactive_split = 0}), 1000);
  EXPECT_EQ(HeadroomOf({.driver_free = 1000, .reserved = 300, .allocated = 0, .inactive_split = 0}), 1300);
  EXPECT_EQ(HeadroomOf({.driver_free = 1000, .reserved = 300, .allocated = 120, .inactive_split = 0}), 1180);
  EXPECT_EQ(HeadroomOf({.driver_free = 1000, .reserved = 300, .allocated = 120, .inactive_split = 50}), 1130);
}

}  // namespace
}  // namespace stemma::testing
