#include "worker/backend/cuda/attention/offsets_cache.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace stemma::testing {
namespace {

using worker::cuda::OffsetsCache;

int64_t num_copied = 0;
at::Tensor CountedCopy(const at::Tensor& host, at::Device device) {
  ++num_copied;
  return host.to(device, host.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

class OffsetsCacheTest : public ::testing::Test {
 protected:
  void SetUp() override { num_copied = 0; }
  OffsetsCache cache_{CountedCopy};
};

TEST_F(OffsetsCacheTest, AListIsSentOnceHoweverOftenItIsBuilt) {
  const at::Tensor first = cache_.Get({0, 3, 8}, at::kCPU);
  EXPECT_TRUE(first.equal(at::tensor({0, 3, 8}, at::kInt)));
  EXPECT_EQ(first.scalar_type(), at::kInt);
  for (int layer = 0; layer < 5; ++layer)
    EXPECT_TRUE(cache_.Get(std::vector<int32_t>{0, 3, 8}, at::kCPU).is_same(first));
  EXPECT_EQ(num_copied, 1);
}

TEST_F(OffsetsCacheTest, ListsThatDifferInANumberALengthOrADeviceAreOthers) {
  cache_.Get({0, 3, 8}, at::kCPU);
  EXPECT_TRUE(cache_.Get({0, 4, 8}, at::kCPU).equal(at::tensor({0, 4, 8}, at::kInt)));
  EXPECT_TRUE(cache_.Get({0, 3}, at::kCPU).equal(at::tensor({0, 3}, at::kInt)));
  EXPECT_TRUE(cache_.Get({0, 3, 8}, at::kMeta).is_meta());
  EXPECT_EQ(num_copied, 4);
}

TEST_F(OffsetsCacheTest, WhatWasNotAskedForLatelyIsForgottenAndItsHolderKeepsIt) {
  const at::Tensor held = cache_.Get({0, 1}, at::kCPU);
  const auto ask = [&](int32_t number) { cache_.Get({0, 2, number}, at::kCPU); };
  for (int32_t i = 0; i < 40; ++i) ask(i);
  EXPECT_TRUE(cache_.Get({0, 1}, at::kCPU).is_same(held)) << "it is the newest again";
  for (int32_t i = 40; i < 80; ++i) ask(i);
  EXPECT_TRUE(cache_.Get({0, 1}, at::kCPU).is_same(held));
  for (int32_t i = 80; i < 200; ++i) ask(i);
  EXPECT_FALSE(cache_.Get({0, 1}, at::kCPU).is_same(held));
  EXPECT_TRUE(held.equal(at::tensor({0, 1}, at::kInt)));
}

}  // namespace
}  // namespace stemma::testing
