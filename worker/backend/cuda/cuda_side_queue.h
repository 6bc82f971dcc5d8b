// A stream of CUDA beside the computation's (worker/backend/side_queue.h says what it promises).
//
// Called on the engine thread, whose current stream is the computation's; its end waits for the stream.
#pragma once

#include <memory>

#include "worker/backend/side_queue.h"

namespace stemma::worker::cuda {

std::unique_ptr<SideQueue> MakeSideStream();

}  // namespace stemma::worker::cuda
