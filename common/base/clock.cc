#include "common/base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace stemma {
namespace {

class MachineClock : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
  double MonotonicSeconds() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  void Sleep(absl::Duration duration) const override { absl::SleepFor(duration); }
};

}  // namespace

const Clock& RealClock() {
  static const MachineClock clock;
  return clock;
}

}  // namespace stemma
