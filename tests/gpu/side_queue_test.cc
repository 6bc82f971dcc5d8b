// A device's side queue: its work comes after what the computation was given before it and before what waits for it,
// and holds up nothing else.
#include "worker/backend/side_queue.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/gpu/device_steps.h"
#include "tests/gpu/test_device.h"

namespace stemma::testing {
namespace {

constexpr int64_t kElements = int64_t{1} << 26, kAdds = 100;  // a tenth of a millisecond and more each

class SideQueueTest : public DeviceTest {};

// Adds 1 to every element so many times that the device works for a while.
void AddMany(at::Tensor x) {
  for (int64_t i = 0; i < kAdds; ++i) x.add_(1);
}

TEST_F(SideQueueTest, ItsWorkComesAfterTheComputationAndBesideWhatFollows) {
  const ModelFolder model({"llama", 64, 256}, /*seed=*/6);
  const Backend& backend = DeviceBackend("fp32", model.config());
  const std::unique_ptr<SideQueue> queue = backend.make_side_queue();
  if (queue == nullptr) {
    ASSERT_FALSE(OnGpu()) << "every GPU has queues beside the computation's";
    GTEST_SKIP() << "a CPU computes when it is called";
  }
  const auto options = backend.options(at::kFloat);
  const at::Tensor computed = at::zeros({kElements}, options), beside = at::zeros({kElements}, options);
  const at::Tensor small = at::zeros({1}, options);
  small.add_(1);  // kernels are loaded when they are first called
  const std::unique_ptr<DeviceClock> clock = backend.make_clock();
  AddMany(computed);
  queue->Run([&] {
    beside.copy_(computed);
    AddMany(beside);
  });
  const int64_t begun = clock->Mark();
  small.add_(1);
  const int64_t went_on = clock->Mark();
  queue->ComputeWaits();
  const at::Tensor read = beside + 1;
  const int64_t waited = clock->Mark();
  EXPECT_TRUE(at::all(read == static_cast<double>(2 * kAdds + 1)).item<bool>()) << "read before it was there";
  EXPECT_LT(clock->At(went_on) - clock->At(begun), 0.5 * (clock->At(waited) - clock->At(went_on)))
      << "the computation waited for the queue before it was told to";
}

}  // namespace
}  // namespace stemma::testing
