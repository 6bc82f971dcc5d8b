#include "worker/backend/host_transfer.h"

namespace stemma::worker {
namespace {

class BlockingRead final : public HostRead {
 public:
  explicit BlockingRead(const at::Tensor& device) : numbers_(device) {}
  const at::Tensor& Get() override {
    numbers_ = numbers_.to(at::kCPU);
    return numbers_;
  }

 private:
  at::Tensor numbers_;
};

}  // namespace

at::Tensor SendBlocking(const at::Tensor& host, at::Device device) { return host.to(device); }

std::unique_ptr<HostRead> StartBlockingRead(const at::Tensor& device) { return std::make_unique<BlockingRead>(device); }

}  // namespace stemma::worker
