#include "worker/backend/cuda/cuda_side_queue.h"

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <functional>

namespace stemma::worker::cuda {
namespace {

// A stream of high priority: its small kernels, for which other ranks wait, run between the large ones of the backward.
class SideStream final : public SideQueue {
 public:
  SideStream() : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true)) {}
  // Waits, as what is in the stream uses memory that may be given away next. An error of the device shows elsewhere.
  ~SideStream() override { cudaStreamSynchronize(stream_.stream()); }

  void Run(const std::function<void()>& work) override {
    computed_.record(c10::cuda::getCurrentCUDAStream());
    computed_.block(stream_);
    const c10::cuda::CUDAStreamGuard guard(stream_);
    work();
  }
  void ComputeWaits() override {
    done_.record(stream_);
    done_.block(c10::cuda::getCurrentCUDAStream());
  }

 private:
  const c10::cuda::CUDAStream stream_;
  at::cuda::CUDAEvent computed_, done_;
};

}  // namespace

std::unique_ptr<SideQueue> MakeSideStream() { return std::make_unique<SideStream>(); }

}  // namespace stemma::worker::cuda
