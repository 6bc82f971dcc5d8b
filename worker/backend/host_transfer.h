// Small tensors on their way between host and device: a wave's tokens and rows there, its log-probs and sums back.
//
// Called by worker/engine and worker/loss through the backend's table (backend.h). The blocking versions here are right
// on every device; a device that runs behind its host brings versions that wait for nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace stemma::worker {

// Numbers that are on their way to the host.
class HostRead {
 public:
  virtual ~HostRead() = default;
  // Waits for them.
  virtual const at::Tensor& Get() = 0;
};

at::Tensor SendBlocking(const at::Tensor& host, at::Device device);
// Copies when Get asks. The device's tensor stays as it is until then.
std::unique_ptr<HostRead> StartBlockingRead(const at::Tensor& device);

}  // namespace stemma::worker
