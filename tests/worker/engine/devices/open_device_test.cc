// Which devices open, and what is said where one does not. Runs on machines with and without a GPU.
#include "worker/engine/open_device.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/testing/namespaces.h"
#include "tests/testing/status_matchers.h"

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

TEST(OpenDeviceTest, ALibraryOfAnotherBuildIsRefused) {
  void* const library = dlopen("libstemma_cuda.so", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) GTEST_SKIP() << "the CUDA library was not built: " << dlerror();
  auto* const open = reinterpret_cast<OpenDeviceFunction*>(dlsym(library, kOpenDeviceSymbol));
  ASSERT_NE(open, nullptr);
  absl::Status failure;
  EXPECT_EQ(open("0.0.1", 0, failure), nullptr);
  EXPECT_THAT(failure, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("install both from one build")));
}

}  // namespace
}  // namespace stemma::testing
