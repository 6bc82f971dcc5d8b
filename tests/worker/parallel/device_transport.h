// A transport of the fake device (tests/testing/fake_device.h), as nccl_transport.h is one of CUDA's: it carries
// tensors of that device and refuses those of the host, which go by Gloo beside it.
#pragma once

#include <memory>

#include "worker/parallel/transport.h"

namespace stemma::testing {

std::shared_ptr<const worker::Transport> MakeFakeDeviceTransport();

}  // namespace stemma::testing
