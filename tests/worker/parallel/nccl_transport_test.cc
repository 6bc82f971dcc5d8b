// NCCL's transport: that a device that is not there is refused by name, and on a machine with CUDA devices every
// collective, with one rank on one device and with one thread per device.
#include "worker/parallel/nccl_transport.h"

#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "tests/worker/parallel/rank_program.h"
#include "worker/parallel/c10d_communicator.h"
#include "worker/parallel/transport.h"

namespace stemma::testing {
namespace {

constexpr uint64_t kSeed = 5;

TEST(NcclTransport, RefusesADeviceThatIsNotThere) {
  const int devices = c10::cuda::device_count();
  for (const int device : {-1, devices, devices + 7}) {
    const auto transport = worker::MakeNcclTransport(device);
    ASSERT_FALSE(transport.ok()) << device;
    EXPECT_EQ(transport.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string expected =
        "no CUDA device " + std::to_string(device) + ": this process sees " + std::to_string(devices);
    EXPECT_EQ(std::string(transport.status().message()).substr(0, expected.size()), expected);
  }
}

// Every collective with tensors of the device, or messages alone where pairs are apart; and every one with tensors of
// the host on the same axis.
ProgramResult RunOn(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, bool pairs_apart) {
  const auto transport = worker::MakeNcclTransport(rank);
  if (!transport.ok()) return {{transport.status().ToString()}, "", ""};
  const c10::DeviceGuard guard((*transport)->device());
  const worker::AxisRank axis{.axis = "dp",
                              .rank = rank,
                              .size = size,
                              .pairs_apart = pairs_apart,
                              .own_host = "127.0.0.1",
                              .join_timeout = std::chrono::minutes(1),
                              .collective_timeout = std::chrono::minutes(1)};
  worker::C10dCommunicator ranks("dp", (*transport)->Connect(store, axis), absl::Minutes(1));
  ProgramResult result = pairs_apart ? RunMessageProgram(ranks, kSeed, (*transport)->device())
                                     : RunRankProgram(ranks, kSeed, (*transport)->device());
  const ProgramResult on_host = RunRankProgram(ranks, kSeed, at::kCPU);
  result.failures.insert(result.failures.end(), on_host.failures.begin(), on_host.failures.end());
  return result;
}

TEST(NcclTransport, OneRankRunsEveryCollective) {
  if (c10::cuda::device_count() < 1) GTEST_SKIP() << "no CUDA device is seen";
  EXPECT_EQ(RunOn(c10::make_intrusive<c10d::HashStore>(), 0, 1, /*pairs_apart=*/false).failures,
            std::vector<std::string>());
}

TEST(NcclTransport, OneRankPerDeviceRunsEveryCollective) {
  const int size = c10::cuda::device_count();
  if (size < 2) GTEST_SKIP() << "two CUDA devices are needed, " << size << " are seen";
  for (const bool pairs_apart : {false, true}) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<ProgramResult> results(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&, rank] { results[static_cast<size_t>(rank)] = RunOn(store, rank, size, pairs_apart); });
    for (std::thread& thread : threads) thread.join();
    for (const ProgramResult& result : results) {
      EXPECT_EQ(result.failures, std::vector<std::string>());
      EXPECT_EQ(result.common_digest, results[0].common_digest);
    }
  }
}

}  // namespace
}  // namespace stemma::testing
