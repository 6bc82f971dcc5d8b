#include "worker/backend/device_clock.h"

#include <glog/logging.h>

#include <vector>

#include "common/base/clock.h"

namespace stemma::worker {
namespace {

class HostClock final : public DeviceClock {
 public:
  int64_t Mark() override {
    marks_.push_back(RealClock().MonotonicSeconds());
    return static_cast<int64_t>(marks_.size()) - 1;
  }
  double At(int64_t mark) override {
    CHECK(mark >= 0 && mark < static_cast<int64_t>(marks_.size())) << "mark " << mark;
    return marks_[static_cast<size_t>(mark)];
  }
  void Clear() override { marks_.clear(); }

 private:
  std::vector<double> marks_;
};

}  // namespace

std::unique_ptr<DeviceClock> MakeHostClock() { return std::make_unique<HostClock>(); }

}  // namespace stemma::worker
