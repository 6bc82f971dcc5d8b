#include "tests/worker/parallel/device_transport.h"

#include <ATen/ops/empty_like.h>

#include <functional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "tests/testing/fake_device.h"
#include "worker/parallel/gloo_transport.h"

namespace stemma::testing {
namespace {

using c10::intrusive_ptr;
using c10d::Backend;
using c10d::Work;
using Tensors = std::vector<at::Tensor>;

class Ended final : public Work {
 public:
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

// Carries the values through the host's memory, and ends each call before it returns.
class FakeDeviceBackend final : public Backend {
 public:
  explicit FakeDeviceBackend(intrusive_ptr<Backend> host) : Backend(host->getRank(), host->getSize()), host_(host) {}

  intrusive_ptr<Work> allreduce(Tensors& values, const c10d::AllreduceOptions& options) override {
    return ByHost(values[0], values[0], [&](at::Tensor& on_host) {
      Tensors list{on_host};
      return host_->allreduce(list, options);
    });
  }
  intrusive_ptr<Work> broadcast(Tensors& values, const c10d::BroadcastOptions& options) override {
    return ByHost(values[0], values[0], [&](at::Tensor& on_host) {
      Tensors list{on_host};
      return host_->broadcast(list, options);
    });
  }
  intrusive_ptr<Work> _allgather_base(at::Tensor& to, at::Tensor& from,
                                      const c10d::AllgatherOptions& options) override {
    at::Tensor own = OnHost(from);
    return ByHost(to, to, [&](at::Tensor& on_host) { return host_->_allgather_base(on_host, own, options); });
  }
  intrusive_ptr<Work> alltoall_base(at::Tensor& to, at::Tensor& from, std::vector<int64_t>& to_counts,
                                    std::vector<int64_t>& from_counts, const c10d::AllToAllOptions& options) override {
    at::Tensor own = OnHost(from);
    return ByHost(to, to, [&](at::Tensor& on_host) {
      return host_->alltoall_base(on_host, own, to_counts, from_counts, options);
    });
  }
  intrusive_ptr<Work> send(Tensors& values, int to, int tag) override {
    return ByHost(values[0], at::Tensor(), [&](at::Tensor& on_host) {
      Tensors list{on_host};
      return host_->send(list, to, tag);
    });
  }
  intrusive_ptr<Work> recv(Tensors& values, int from, int tag) override {
    return ByHost(values[0], values[0], [&](at::Tensor& on_host) {
      Tensors list{on_host};
      return host_->recv(list, from, tag);
    });
  }
  void abort() override { host_->abort(); }
  void shutdown() override { host_->shutdown(); }

 private:
  using Call = std::function<intrusive_ptr<Work>(at::Tensor& on_host)>;

  static at::Tensor OnHost(const at::Tensor& values) {
    TORCH_CHECK(values.is_privateuseone(), "a tensor that this device carries lies on it, this one on ",
                values.device());
    return values.cpu();
  }

  static intrusive_ptr<Work> ByHost(const at::Tensor& from, at::Tensor to, const Call& call) {
    at::Tensor on_host = OnHost(from);
    call(on_host)->wait();
    if (to.defined()) to.copy_(on_host);
    return c10::make_intrusive<Ended>();
  }

  const intrusive_ptr<Backend> host_;
};

class FakeDeviceTransport final : public worker::Transport {
 public:
  FakeDeviceTransport() : device_(MakeFakeDeviceBackend().device), host_(worker::MakeGlooTransport()) {}

  at::Device device() const override { return device_; }

  worker::AxisBackends Connect(const intrusive_ptr<c10d::Store>& store, const worker::AxisRank& axis) const override {
    const auto part = [&](const char* name) { return c10::make_intrusive<c10d::PrefixStore>(name, store); };
    worker::AxisBackends backends = host_->Connect(part("host"), axis);
    const auto connect = [this](const auto& of_ranks, const worker::AxisRank& ranks) {
      return c10::make_intrusive<FakeDeviceBackend>(host_->Connect(of_ranks, ranks).host);
    };
    worker::ConnectOnDevice(part("device"), axis, connect, backends);
    return backends;
  }

 private:
  const at::Device device_;
  const std::shared_ptr<const worker::Transport> host_;
};

}  // namespace

std::shared_ptr<const worker::Transport> MakeFakeDeviceTransport() { return std::make_shared<FakeDeviceTransport>(); }

}  // namespace stemma::testing
