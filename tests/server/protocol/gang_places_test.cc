// Where workers are: by that they get their ranks, and share memory and cores.
#include "gtest/gtest.h"
#include "server/protocol/gang.h"
#include "tests/server/protocol/made_gangs.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using ::testing::HasSubstr;
using testing::Invalid;
using testing::IsOk;
using testing::StatusIs;

TEST(GangPlacesTest, RanksAreByHostThenDeviceWhoeverCameFirst) {
  Gang gang(MeshOf(4));
  ASSERT_THAT(gang.Join(kStart, 1, WorkerAt("b", "cpu:10", "10.0.0.2")), IsOk());
  ASSERT_THAT(gang.Join(kStart, 2, WorkerAt("b", "cpu:9", "10.0.0.2")), IsOk());
  ASSERT_THAT(gang.Join(kStart, 3, WorkerAt("a", "cpu:20", "10.0.0.1")), IsOk());
  EXPECT_FALSE(gang.full());
  ASSERT_THAT(JoinAndBegin(gang, kStart, 4, WorkerAt("a", "cpu:0", "10.0.0.1"), 5).status(), IsOk());
  EXPECT_EQ(gang.RankOf(4), 0u);
  EXPECT_EQ(gang.RankOf(3), 1u);
  EXPECT_EQ(gang.RankOf(2), 2u) << "9 before 10";
  EXPECT_EQ(gang.RankOf(1), 3u);
  const auto others = gang.OpenStore(4, "10.0.0.1:700");
  ASSERT_THAT(others.status(), IsOk());
  ASSERT_EQ(others->size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ((*others)[i].rank(), i + 1);
    EXPECT_EQ((*others)[i].store(), "10.0.0.1:700");
    EXPECT_EQ((*others)[i].step(), 5u);
    EXPECT_EQ((*others)[i].generation(), 1u);
  }
  EXPECT_THAT(gang.OpenStore(4, "10.0.0.1:701").status(), Invalid("not to be opened")) << "a second one";
}

internal::v1::Register WorkerOn(const std::string& device_id, const std::string& host = "a",
                                const std::string& device = "cuda:0") {
  internal::v1::Register message = WorkerAt(host, device, "10.0.0.1");
  message.set_incarnation("w" + device_id);
  message.set_device_id(device_id);
  return message;
}

// As processes of a job that each see one GPU of their host, or pods in its network.
TEST(GangPlacesTest, WorkersOfOneNameAreToldApartByTheirHardware) {
  Gang gang(MeshOf(3));
  ASSERT_THAT(gang.Join(kStart, 1, WorkerOn("c")), IsOk());
  ASSERT_THAT(gang.Join(kStart, 2, WorkerOn("a")), IsOk());
  EXPECT_THAT(gang.Join(kStart, 3, WorkerOn("c")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has a worker already, wc")));
  EXPECT_FALSE(gang.Join(kStart, 3, WorkerOn("c", "b", "cuda:1")).ok()) << "whatever it is called";
  EXPECT_FALSE(gang.Join(kStart, 3, WorkerOn("")).ok()) << "one that does not know it is told by its name";
  ASSERT_THAT(JoinAndBegin(gang, kStart, 3, WorkerOn("b")).status(), IsOk());
  EXPECT_EQ(gang.RankOf(2), 0u) << "ranks of one name are by the hardware";
  EXPECT_EQ(gang.RankOf(3), 1u);
  EXPECT_EQ(gang.RankOf(1), 2u);
}

internal::v1::Register InPod(const std::string& pod, const std::string& machine, const std::string& memory_group = "",
                             const std::string& core_group = "") {
  internal::v1::Register message = WorkerAt(pod, "cpu:0", "10.0.0.1");
  message.set_machine(machine);
  message.set_memory_group(memory_group);
  message.set_core_group(core_group);
  message.set_cores(12);
  return message;
}

TEST(GangPlacesTest, PodsOfOneMachineAreNeighboursAndShareItsMemoryAndCores) {
  GangOptions options = MeshOf(4);
  options.config.set_threads(0);  // as many as there are cores
  Gang gang(options);
  ASSERT_THAT(gang.Join(kStart, 1, InPod("pod-0", "m", /*memory_group=*/"", /*core_group=*/"/sys/fs/cgroup")), IsOk());
  ASSERT_THAT(gang.Join(kStart, 2, InPod("pod-1", "n")), IsOk());
  ASSERT_THAT(gang.Join(kStart, 3, InPod("pod-2", "m")), IsOk());
  const auto first = JoinAndBegin(gang, kStart, 4, InPod("pod-3", "n", /*memory_group=*/"/sys/fs/cgroup"));
  ASSERT_THAT(first.status(), IsOk());
  EXPECT_EQ(gang.RankOf(1), 0u);
  EXPECT_EQ(gang.RankOf(3), 1u) << "beside pod-0";
  EXPECT_EQ(gang.RankOf(2), 2u);
  EXPECT_EQ(first->ranks_of_host(), 2u);
  EXPECT_EQ(first->config().threads(), 0u) << "all that it has: a group of its own limits its cores";
  const auto others = gang.OpenStore(1, "10.0.0.1:700");
  ASSERT_THAT(others.status(), IsOk());
  EXPECT_EQ((*others)[2].ranks_of_host(), 1u) << "a group of its own limits pod-3's memory";
  EXPECT_EQ((*others)[2].config().threads(), 6u) << "and its cores are its machine's";
}

TEST(GangPlacesTest, MachinesMayHaveOneHostName) {
  Gang gang(MeshOf(2));
  ASSERT_THAT(gang.Join(kStart, 1, InPod("worker", "m")), IsOk());
  EXPECT_FALSE(gang.Join(kStart, 2, InPod("worker", "m")).ok());
  const auto first = JoinAndBegin(gang, kStart, 2, InPod("worker", "n"));
  ASSERT_THAT(first.status(), IsOk());
  EXPECT_EQ(first->ranks_of_host(), 1u);
}

}  // namespace
}  // namespace stemma::server
