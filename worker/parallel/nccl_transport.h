// NCCL: carries tensors of one CUDA device per rank, over NVLink or the network; what ranks tell each other in tensors
// of the host (agreements, words, digests, paths) goes by Gloo beside it, and waits for no device. Compiled where the
// CUDA toolkit is (CMake says so, with the reason where not), and linked by what runs on CUDA alone: it brings
// LibTorch's CUDA library.
//
// A collective is put on a stream: Wait returns when the device will have the result before anything that is put on the
// current stream afterwards, not when it has it. So an error of a peer is not Wait's, but for one that was known
// before: PyTorch's watchdog logs it, and the server ends the generation (cuda_environment.h).
//
// A stream runs one call after the other, and a message there waits for its peer's. On an axis whose pairs are apart
// each pair of neighbours has a communicator of NCCL, with a stream of its own, for each direction, and all ranks
// together have none.
//
// NCCL listens on the interface of the rank's address, unless NCCL_SOCKET_IFNAME names another. Connecting writes to
// the environment (cuda_environment.h): the engine's thread does it, before the first step.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

namespace stemma::worker {

class Transport;

// Errors: InvalidArgument - this process sees no such device; says how many it sees.
absl::StatusOr<std::shared_ptr<const Transport>> MakeNcclTransport(int cuda_device);

}  // namespace stemma::worker
