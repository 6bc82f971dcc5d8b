// Small tensors between host and a CUDA device through page-locked memory, and the times at which the device reached
// points of its stream. Entries of the backend's table (worker/backend/backend.h), which says what they promise.
//
// Called on the engine thread; work is queued on its current stream, and none of it waits but Get and At.
#pragma once

#include <memory>

#include "worker/backend/device_clock.h"
#include "worker/backend/host_transfer.h"

namespace stemma::worker::cuda {

at::Tensor Send(const at::Tensor& host, at::Device device);
std::unique_ptr<HostRead> StartRead(const at::Tensor& device);
std::unique_ptr<DeviceClock> MakeStreamClock();

}  // namespace stemma::worker::cuda
