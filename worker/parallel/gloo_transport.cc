#include "worker/parallel/gloo_transport.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "worker/parallel/transport.h"

namespace stemma::worker {
namespace {

using c10d::ProcessGroupGloo;

class GlooTransport final : public Transport {
 public:
  at::Device device() const override { return at::kCPU; }

  AxisBackends Connect(const c10::intrusive_ptr<c10d::Store>& store, const AxisRank& axis) const override {
    // Not create_default: it looks up this host's name and puts a device of whatever address that has, often the
    // loopback, before ours.
    auto options = c10::make_intrusive<ProcessGroupGloo::Options>(axis.join_timeout);
    options->devices = {ProcessGroupGloo::createDeviceForHostname(axis.own_host)};
    c10::intrusive_ptr<c10d::Backend> backend =
        c10::make_intrusive<ProcessGroupGloo>(store, axis.rank, axis.size, std::move(options));
    // Not every pair is connected when this rank's are, and the store must live until then.
    backend->barrier()->wait();
    backend->setTimeout(axis.collective_timeout);
    AxisBackends backends;
    backends.host = std::move(backend);
    return backends;
  }
};

}  // namespace

std::shared_ptr<const Transport> MakeGlooTransport() { return std::make_shared<GlooTransport>(); }

}  // namespace stemma::worker
