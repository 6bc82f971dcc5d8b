#include "worker/parallel/nccl_transport.h"

#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAFunctions.h>

#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/parallel/cuda_environment.h"
#include "worker/parallel/gloo_transport.h"
#include "worker/parallel/transport.h"

namespace stemma::worker {
namespace {

class NcclTransport final : public Transport {
 public:
  explicit NcclTransport(at::Device device) : device_(device), host_(MakeGlooTransport()) {}

  at::Device device() const override { return device_; }

  AxisBackends Connect(const c10::intrusive_ptr<c10d::Store>& store, const AxisRank& axis) const override {
    const auto part = [&](const char* name) { return c10::make_intrusive<c10d::PrefixStore>(name, store); };
    AxisBackends backends = host_->Connect(part("host"), axis);
    TellNccl(axis.own_host);
    const auto connect = [this](const auto& of_ranks, const AxisRank& ranks) { return ConnectDevice(of_ranks, ranks); };
    ConnectOnDevice(part("device"), axis, connect, backends);
    return backends;
  }

 private:
  c10::intrusive_ptr<c10d::Backend> ConnectDevice(const c10::intrusive_ptr<c10d::Store>& store,
                                                  const AxisRank& axis) const {
    const c10::DeviceGuard guard(device_);
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = axis.collective_timeout;
    options->group_name = axis.axis;
    c10::intrusive_ptr<c10d::Backend> backend =
        c10::make_intrusive<c10d::ProcessGroupNCCL>(store, axis.rank, axis.size, std::move(options));
    // Connected now, while every rank is known to be there, and not in the middle of a step, when NCCL's buffers find
    // no room beside what PyTorch's allocator keeps. A communicator of a pair gets none for collectives.
    backend->setBoundDeviceId(device_);
    backend->eagerConnectSingleDevice(device_);
    WarmUp(*backend, axis, device_);
    return backend;
  }

  const at::Device device_;
  const std::shared_ptr<const Transport> host_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Transport>> MakeNcclTransport(int cuda_device) {
  const c10::DeviceIndex devices = c10::cuda::device_count();  // 0 without a driver
  if (cuda_device < 0 || cuda_device >= devices) {
    return absl::InvalidArgumentError(absl::StrCat("no CUDA device ", cuda_device, ": this process sees ", +devices,
                                                   devices == 0 ? ", or has no driver" : ""));
  }
  return std::make_shared<NcclTransport>(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(cuda_device)));
}

}  // namespace stemma::worker
