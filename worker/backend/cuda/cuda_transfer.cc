#include "worker/backend/cuda/cuda_transfer.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAStream.h>
#include <glog/logging.h>

#include <vector>

#include "common/base/clock.h"

namespace stemma::worker::cuda {
namespace {

// LibTorch keeps such memory and gives it out again once the copies that were queued with it have run.
at::Tensor EmptyPageLocked(const at::Tensor& like) {
  return at::empty(like.sizes(), at::TensorOptions(at::kCPU).dtype(like.scalar_type()).pinned_memory(true));
}

class StreamRead final : public HostRead {
 public:
  explicit StreamRead(const at::Tensor& device) : numbers_(EmptyPageLocked(device)) {
    numbers_.copy_(device, /*non_blocking=*/true);
    copied_.record(c10::cuda::getCurrentCUDAStream());
  }
  const at::Tensor& Get() override {
    copied_.synchronize();
    return numbers_;
  }

 private:
  const at::Tensor numbers_;
  at::cuda::CUDAEvent copied_;
};

// Marks are events. The first one since Clear ties them to the host's clock: the stream is waited for, and both are
// read. A pass begins there, with nothing under way that could be held up.
class StreamClock final : public DeviceClock {
 public:
  int64_t Mark() override {
    if (next_ == 0) {
      c10::cuda::getCurrentCUDAStream().synchronize();
      origin_s_ = RealClock().MonotonicSeconds();
    }
    if (next_ == events_.size()) events_.emplace_back(cudaEventDefault);
    events_[next_].record(c10::cuda::getCurrentCUDAStream());
    return static_cast<int64_t>(next_++);
  }
  double At(int64_t mark) override {
    CHECK(mark >= 0 && static_cast<size_t>(mark) < next_) << "mark " << mark;
    at::cuda::CUDAEvent& event = events_[static_cast<size_t>(mark)];
    event.synchronize();
    return origin_s_ + events_.front().elapsed_time(event) * 1e-3;
  }
  void Clear() override { next_ = 0; }

 private:
  std::vector<at::cuda::CUDAEvent> events_;  // those from next_ on are free
  size_t next_ = 0;
  double origin_s_ = 0;  // of the first mark, on the host's clock
};

}  // namespace

at::Tensor Send(const at::Tensor& host, at::Device device) {
  const at::Tensor locked = EmptyPageLocked(host);
  locked.copy_(host);
  return locked.to(device, locked.scalar_type(), /*non_blocking=*/true);
}

std::unique_ptr<HostRead> StartRead(const at::Tensor& device) { return std::make_unique<StreamRead>(device); }

std::unique_ptr<DeviceClock> MakeStreamClock() { return std::make_unique<StreamClock>(); }

}  // namespace stemma::worker::cuda
