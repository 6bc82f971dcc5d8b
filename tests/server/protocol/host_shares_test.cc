#include "server/protocol/host_shares.h"

#include <vector>

#include "gtest/gtest.h"

namespace stemma::server {
namespace {

TEST(HostSharesTest, WhatTheHostHasIsDividedAndADeviceOfItsOwnIsNot) {
  const WorkerMemory cpu = ShareOf({.device_free_bytes = 90, .host_free_bytes = 0, .device_bytes = 120}, 3);
  EXPECT_EQ(cpu.device_free_bytes, 30);
  EXPECT_EQ(cpu.host_free_bytes, 0) << "still: the device's memory is the host's";
  EXPECT_EQ(cpu.device_bytes, 40);
  const WorkerMemory gpu = ShareOf({.device_free_bytes = 90, .host_free_bytes = 60, .device_bytes = 120}, 3);
  EXPECT_EQ(gpu.device_free_bytes, 90);
  EXPECT_EQ(gpu.host_free_bytes, 20);
  EXPECT_EQ(gpu.device_bytes, 120);
}

// 0 would say that it is not known, and of the host's memory that it is the device's, too.
TEST(HostSharesTest, APartOfNextToNothingIsNotNothing) {
  const WorkerMemory gpu = ShareOf({.device_free_bytes = 90, .host_free_bytes = 1, .device_bytes = 120}, 2);
  EXPECT_EQ(gpu.host_free_bytes, 1);
  EXPECT_EQ(gpu.device_free_bytes, 90);
  const WorkerMemory cpu = ShareOf({.device_free_bytes = 1, .host_free_bytes = 0, .device_bytes = 120}, 2);
  EXPECT_EQ(cpu.device_free_bytes, 1);
  EXPECT_EQ(cpu.host_free_bytes, 0);
  EXPECT_EQ(ShareOf({.device_free_bytes = 0, .host_free_bytes = 0, .device_bytes = 120}, 2).device_free_bytes, 0)
      << "what is not known stays so";
}

TEST(HostSharesTest, TheSmallestOfEachNumberThatIsKnown) {
  const std::vector<WorkerMemory> workers = {{.device_free_bytes = 5, .host_free_bytes = 0, .device_bytes = 9},
                                             {.device_free_bytes = 7, .host_free_bytes = 3, .device_bytes = 8}};
  const WorkerMemory smallest = SmallestOf(workers);
  EXPECT_EQ(smallest.device_free_bytes, 5);
  EXPECT_EQ(smallest.host_free_bytes, 3);
  EXPECT_EQ(smallest.device_bytes, 8);
}

TEST(HostSharesTest, ContainersOfOneMachineShareWhatNoGroupOfTheirsLimits) {
  constexpr char kRoot[] = "/sys/fs/cgroup";
  EXPECT_TRUE(ShareOne({"m", "pod-0", ""}, {"m", "pod-1", ""}));
  EXPECT_FALSE(ShareOne({"m", "pod-0", ""}, {"n", "pod-0", ""})) << "hosts may have one name";
  EXPECT_FALSE(ShareOne({"m", "pod-0", kRoot}, {"m", "pod-1", kRoot})) << "each in its own root";
  EXPECT_FALSE(ShareOne({"m", "pod-0", kRoot}, {"m", "pod-1", ""}));
  EXPECT_TRUE(ShareOne({"", "h", ""}, {"", "h", kRoot})) << "of a machine that is not known, the host";
  EXPECT_FALSE(ShareOne({"", "h", ""}, {"", "i", ""}));
}

TEST(HostSharesTest, WorkersOfOneHostShareUnlessTwoGroupsLimitThem) {
  EXPECT_TRUE(ShareOne({"m", "h", "/a"}, {"m", "h", "/a"}));
  EXPECT_FALSE(ShareOne({"m", "h", "/a"}, {"m", "h", "/b"})) << "services of one host";
  EXPECT_TRUE(ShareOne({"m", "h", "/a"}, {"m", "h", ""}))
      << "the machine had a little less free when one of them looked";
  EXPECT_TRUE(ShareOne({"m", "h", ""}, {"m", "h", "/a"}));
}

TEST(HostSharesTest, CoresAreDividedAmongSeveral) {
  EXPECT_EQ(ThreadsOf(8, 1), 0u) << "all of them, as the worker counts them";
  EXPECT_EQ(ThreadsOf(8, 3), 2u);
  EXPECT_EQ(ThreadsOf(2, 4), 1u);
  EXPECT_EQ(ThreadsOf(0, 4), 0u) << "not known";
}

}  // namespace
}  // namespace stemma::server
