// How a rank's end treats the backends of its axes, and what a rank says of an error of one.
#include "worker/parallel/c10d_communicator.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

// Writes down what ends it.
class EndingBackend final : public c10d::Backend {
 public:
  EndingBackend(std::string name, std::vector<std::string>& ends)
      : Backend(0, 2), name_(std::move(name)), ends_(ends) {}

  const std::string getBackendName() const override { return name_; }
  void shutdown() override { ends_.push_back("shutdown of " + name_); }
  void abort() override { ends_.push_back("abort of " + name_); }

 private:
  const std::string name_;
  std::vector<std::string>& ends_;
};

// NCCL's orderly end is a call of all ranks: one that ends alone would wait for the others for ever.
TEST(C10dCommunicator, ARankEndsWithoutTheOthersOfItsDevices) {
  std::vector<std::string> ends;
  const auto backend = [&](const char* name) { return c10::make_intrusive<EndingBackend>(name, ends); };
  {
    worker::AxisBackends backends;
    backends.host = backend("host");
    backends.device = backend("device");
    backends.to = {nullptr, backend("to 1")};
    backends.from = {nullptr, backend("from 1")};
    const worker::C10dCommunicator ranks("pp", std::move(backends), absl::Seconds(1));
  }
  const std::vector<std::string> expected = {"shutdown of host", "abort of device", "abort of to 1", "abort of from 1"};
  EXPECT_EQ(ends, expected);
}

std::string TextOf(const std::string& what) {
  const absl::Status status = worker::CatchC10d(absl::Seconds(7), [&] {
    throw c10::DistBackendError(c10::SourceLocation{"f", "NCCLUtils.hpp", 9}, what);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  return std::string(status.message());
}

constexpr char kPlace[] = "NCCL error in: /torch/NCCLUtils.hpp:94, unhandled error, NCCL version 2.28.9\n";

// As PyTorch 2.11 and NCCL 2.28 write them.
TEST(CatchC10d, NcclsOwnReasonIsQuoted) {
  EXPECT_EQ(TextOf(std::string(kPlace) + "ncclInternalError: Internal check failed.\nLast error:\nno GDR buffer"),
            "NCCL failed on this rank (NCCL error in: /torch/NCCLUtils.hpp:94, unhandled error, NCCL version 2.28.9 "
            "ncclInternalError: Internal check failed. Last error: no GDR buffer)");
  EXPECT_EQ(TextOf(std::string(kPlace) + "ncclInvalidUsage: This usually reflects invalid usage."),
            "NCCL failed on this rank (NCCL error in: /torch/NCCLUtils.hpp:94, unhandled error, NCCL version 2.28.9 "
            "ncclInvalidUsage: This usually reflects invalid usage.)");
}

TEST(CatchC10d, ALongWordBeforeTheReasonIsCut) {
  const std::string text = TextOf(kPlace + std::string(1000, 'a') + "\nLast error:\nreason" + std::string(1000, 'b'));
  EXPECT_NE(text.find("aLast error: reasonb"), std::string::npos) << text;
  EXPECT_EQ(text.size(), std::string("NCCL failed on this rank ()").size() + 600);
}

TEST(CatchC10d, NcclSpeaksOfAPeer) {
  const std::string peer = TextOf(
      std::string(kPlace) + "ncclRemoteError: A call failed possibly due to a network error or a remote process.");
  EXPECT_EQ(peer.substr(0, peer.find(" (")), "a peer has ended, or was killed") << peer;
  const std::string refuses =
      TextOf(std::string(kPlace) + "ncclSystemError: System call.\nLast error:\nConnection refused");
  EXPECT_EQ(refuses.substr(0, refuses.find(" (")),
            "a peer refuses the connection: it has ended, or listens on another address");
  const std::string late = TextOf("Watchdog caught collective operation timeout: WorkNCCL");
  EXPECT_EQ(late.substr(0, late.find(" (")), "timed out after 7s: a peer hangs, is stopped or cannot be reached");
  const std::string store = TextOf("retrieving ncclUniqueId: store->get('0') got error: socket closed");
  EXPECT_EQ(store.substr(0, store.find(" (")), "a peer has ended, or was killed");
}

// NCCL calls CUDA on this rank's device alone.
TEST(CatchC10d, NcclSpeaksOfThisRanksDevice) {
  const std::string text = TextOf(
      std::string(kPlace) + "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 700");
  EXPECT_EQ(text.substr(0, text.find(" (")), "this rank's own device failed") << text;
  EXPECT_NE(text.find("Last error: Cuda failure 700"), std::string::npos) << text;
}

}  // namespace
}  // namespace stemma::testing
