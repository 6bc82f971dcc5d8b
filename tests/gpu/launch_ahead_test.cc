// The host only queues work: it is well ahead of the device while a step runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "tests/gpu/device_steps.h"
#include "tests/gpu/test_device.h"
#include "tests/testing/synthetic.h"

namespace stemma::testing {
namespace {

// When the host came to each mark, and when the device did.
struct Marks {
  std::vector<double> host_s, device_s;
};

Marks& LastMarks() {
  static Marks& marks = *new Marks;
  return marks;
}

std::unique_ptr<DeviceClock> (*device_clock)() = nullptr;

class NotingClock final : public DeviceClock {
 public:
  explicit NotingClock(std::unique_ptr<DeviceClock> clock) : clock_(std::move(clock)) { LastMarks() = {}; }

  int64_t Mark() override {
    LastMarks().host_s.push_back(RealClock().MonotonicSeconds());
    return clock_->Mark();
  }
  double At(int64_t mark) override {
    const double at_s = clock_->At(mark);
    if (LastMarks().device_s.size() <= static_cast<size_t>(mark)) {
      LastMarks().device_s.resize(static_cast<size_t>(mark) + 1, at_s);
    }
    LastMarks().device_s[static_cast<size_t>(mark)] = at_s;
    return at_s;
  }
  void Clear() override { clock_->Clear(); }

 private:
  const std::unique_ptr<DeviceClock> clock_;
};

struct GroupOf {
  int64_t prompt, response, rollouts;
};

class LaunchAheadTest : public DeviceTest {};

TEST_F(LaunchAheadTest, QueuingAPhaseTakesTheHostLessThanTheDeviceTakesToRunIt) {
  constexpr SmallModel kModel = {"llama", 64, 256};
  const ModelFolder model(kModel, 6);
  Backend backend = DeviceBackend("bf16", model.config());
  device_clock = backend.make_clock;
  backend.make_clock = [] { return std::unique_ptr<DeviceClock>(std::make_unique<NotingClock>(device_clock())); };
  const auto steps =
      MakeSteps(model, {.dtype = "bf16", .wave_suffixes = 32, .head_chunk_rows = 8192}, std::move(backend));
  // Few layers with many rows: for each phase the device takes many times as long as launches do.
  const GroupOf size = OnGpu() ? GroupOf{12000, 4000, 64} : GroupOf{40, 10, 64};
  const TrainingRequest request = SyntheticRequest(
      {size.prompt}, std::vector<int64_t>(static_cast<size_t>(size.rollouts), size.response), kModel.vocab);
  for (int warm_up = 0; warm_up < 3; ++warm_up) RunStep(*steps, request);
  const Marks& marks = LastMarks();
  ASSERT_EQ(marks.host_s.size(), 12u) << "prefix, two waves forward and backward, prefix";
  if (!OnGpu()) GTEST_SKIP() << "a CPU computes when it is called";
  ASSERT_EQ(marks.device_s.size(), marks.host_s.size());
  double host_s = 0, device_s = 0;
  // Marks come in pairs, the begin and the end of an operation. Prefix and first wave are queued before any wait.
  const size_t last = std::min<size_t>(marks.device_s.size(), 6);
  for (size_t i = 0; i + 1 < last; i += 2) {
    host_s += marks.host_s[i + 1] - marks.host_s[i];
    device_s += marks.device_s[i + 1] - marks.device_s[i];
  }
  RecordProperty("host_ms", std::to_string(1e3 * host_s));
  RecordProperty("device_ms", std::to_string(1e3 * device_s));
  EXPECT_LT(host_s, device_s / 2);
}

}  // namespace
}  // namespace stemma::testing
