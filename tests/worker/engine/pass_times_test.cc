// What a pass's operations cost by a device that is behind its host: only what lies between the device's own marks.
#include "worker/engine/pass_times.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::worker {
namespace {

double device_s = 0;  // when the device will have done what it was given

class StatedClock final : public DeviceClock {
 public:
  int64_t Mark() override {
    marks_.push_back(device_s);
    return static_cast<int64_t>(marks_.size()) - 1;
  }
  double At(int64_t mark) override { return marks_[static_cast<size_t>(mark)]; }
  void Clear() override { marks_.clear(); }

 private:
  std::vector<double> marks_;
};

// A phase of 35 ms on the device, behind a wave of half a second: its host was held for 400 ms, nearly all of them by
// the wave.
PassSums SumsOf(bool behind_its_host, StepSpans* spans) {
  Backend backend = MakeCpuBackend();
  backend.host_reads_are_free = !behind_its_host;
  backend.make_clock = [] { return std::unique_ptr<DeviceClock>(std::make_unique<StatedClock>()); };
  PassTimes times(backend, spans, /*entry=*/false, {});
  PassSums sums;
  device_s = 0.5;
  times.Begin();
  device_s += 0.035;
  times.End({.kind = OperationKind::kPrefixBackward}, /*apart_s=*/0.4, /*held_s=*/0.4, sums);
  times.Settle(sums);
  return sums;
}

TEST(PassTimesTest, WhatHeldTheHostIsNotTakenFromADevicesSeconds) {
  StepSpans spans(0, 9);
  EXPECT_NEAR(SumsOf(/*behind_its_host=*/true, &spans).prefix_backward_s, 0.035, 1e-12);
  const v1::SpanList list = spans.Take();
  ASSERT_EQ(list.spans_size(), 1);
  EXPECT_EQ(list.spans(0).held_ns(), 0u) << "more than the span's own time would end the generation";
  EXPECT_NEAR(SumsOf(/*behind_its_host=*/false, nullptr).prefix_backward_s, 0.035 - 0.4, 1e-12)
      << "one clock: what was apart lies between the marks";
}

}  // namespace
}  // namespace stemma::worker
