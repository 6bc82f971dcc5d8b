// Which devices open, and what is said where one does not. Runs on machines with and without a GPU.
#include "worker/engine/open_device.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "tests/testing/namespaces.h"
#include "tests/testing/status_matchers.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/engine/checked_backend.h"

namespace stemma::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(OpenDeviceTest, TheCpuNeedsNoLibraryAndNoCheck) {
  const auto device = OpenDevice({"cpu", 3});
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_THAT((*device)->identity().name, IsEmpty());
  EXPECT_TRUE((*device)->memory().is_host);
  EXPECT_GT((*device)->memory().free_bytes, 0);
  EXPECT_EQ((*device)->MakeBackend({}).name, "cpu");
}

TEST(OpenDeviceTest, AnUnknownKindIsRefusedByName) {
  EXPECT_THAT(OpenDevice({"tpu", 0}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("kind \"tpu\"; known: cpu, as cpu:0, and cuda")));
}

// No host has so many: with a GPU the number is wrong, without one there is no driver, and without the CUDA toolkit the
// library was not built. Whichever it is, it is said.
TEST(OpenDeviceTest, ADeviceThatIsNotThereIsRefusedWithWhatToDo) {
  EXPECT_THAT(OpenDevice({"cuda", 4095}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AnyOf(HasSubstr("there is no device 4095"), HasSubstr("driver for CUDA 13"),
                             HasSubstr("compute on the CPU with --device cpu"))));
}

// CUDA reads it when it is called first.
TEST(OpenDeviceTest, CudaIsToldBeforeItIsOpened) {
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  OpenDevice({"cpu", 0}).status().IgnoreError();
  EXPECT_EQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), nullptr);
  OpenDevice({"cuda", 4095}).status().IgnoreError();
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
}

TEST(OpenDeviceTest, ALibraryOfAnotherBuildIsRefused) {
  void* const library = dlopen("libstemma_cuda.so", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) GTEST_SKIP() << "the CUDA library was not built: " << dlerror();
  auto* const open = reinterpret_cast<OpenDeviceFunction*>(dlsym(library, kOpenDeviceSymbol));
  ASSERT_NE(open, nullptr);
  absl::Status failure;
  EXPECT_EQ(open("0.0.1", 0, failure), nullptr);
  EXPECT_THAT(failure, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("install both from one build")));
}

// A device whose kernels are the CPU's, and which counts the calls of one of them.
int64_t num_swiglu_calls = 0;

class NamedDevice final : public Device {
 public:
  DeviceIdentity identity() const override { return {.name = "A device", .build_id = "1"}; }
  DeviceMemory memory() const override { return HostMemory(); }
  Backend MakeBackend(const BackendRequest& /*request*/) const override {
    Backend backend = MakeCpuBackend();
    backend.kernels.swiglu_forward = [](const SwigluForwardOperands& args) {
      ++num_swiglu_calls;
      MakeCpuBackend().kernels.swiglu_forward(args);
    };
    backend.faster_attention = {{"attention_faster", MakeCpuBackend().attention}};
    return backend;
  }
  absl::StatusOr<std::shared_ptr<const Transport>> MakeTransport() const override {
    return absl::UnimplementedError("it is alone");
  }
};

TEST(CheckedBackendTest, ANamedDeviceIsCheckedAtItsFirstStartOnly) {
  const std::string directory = ::testing::TempDir() + "/checked-backend";
  std::filesystem::remove_all(directory);
  const BackendRequest request = {at::kFloat, 4, 2, 16};
  num_swiglu_calls = 0;
  const Backend first = CheckedBackend(NamedDevice(), request, directory);
  const int64_t calls = num_swiglu_calls;
  EXPECT_GT(calls, 0);
  EXPECT_TRUE(first.kernels_off.empty());
  EXPECT_TRUE(first.faster_attention.empty()) << "the one that is right is in use";
  const Backend second = CheckedBackend(NamedDevice(), request, directory);
  EXPECT_EQ(num_swiglu_calls, calls) << "the record of the first start says it all, faster attentions too";
  CheckedBackend(NamedDevice(), {at::kBFloat16, 4, 2, 16}, directory);
  EXPECT_GT(num_swiglu_calls, calls) << "another dtype is another check";
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace stemma::testing
