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
  EXPECT_EQ(PoolOf("m", "pod-0", ""), PoolOf("m", "pod-1", ""));
  EXPECT_NE(PoolOf("m", "pod-0", ""), PoolOf("n", "pod-0", "")) << "hosts may have one name";
  EXPECT_NE(PoolOf("m", "pod-0", "/sys/fs/cgroup"), PoolOf("m", "pod-1", "/sys/fs/cgroup")) << "each in its own root";
  EXPECT_EQ(PoolOf("m", "pod-0", "/sys/fs/cgroup"), PoolOf("m", "pod-0", "/sys/fs/cgroup"));
  EXPECT_NE(PoolOf("m", "h", "/sys/fs/cgroup/a"), PoolOf("m", "h", "/sys/fs/cgroup/b")) << "services of one host";
  EXPECT_EQ(PoolOf("", "h", ""), PoolOf("", "h", "/sys/fs/cgroup/a")) << "of a machine that is not known, the host";
  EXPECT_NE(PoolOf("", "h", ""), PoolOf("", "i", ""));
}

TEST(HostSharesTest, CoresAreDividedAmongSeveral) {
  EXPECT_EQ(ThreadsOf(8, 1), 0u) << "all of them, as the worker counts them";
  EXPECT_EQ(ThreadsOf(8, 3), 2u);
  EXPECT_EQ(ThreadsOf(2, 4), 1u);
  EXPECT_EQ(ThreadsOf(0, 4), 0u) << "not known";
}

}  // namespace
}  // namespace stemma::server
