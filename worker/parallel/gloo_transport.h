// Gloo: carries tensors of the CPU over TCP. Every connection is bound to the rank's own address.
#pragma once

#include <memory>

namespace stemma::worker {

class Transport;

std::shared_ptr<const Transport> MakeGlooTransport();

}  // namespace stemma::worker
