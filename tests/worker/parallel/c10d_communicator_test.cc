// How a rank's end treats the backends of its axes.
#include "worker/parallel/c10d_communicator.h"

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

}  // namespace
}  // namespace stemma::testing
