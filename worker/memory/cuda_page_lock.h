// The PageLock of CUDA: registers memory that exists already (cudaHostRegister), for all devices of the process.
// Built where the CUDA toolkit is; the CUDA backend makes it, for the memory that is offloaded to.
#pragma once

#include "worker/memory/page_lock.h"

namespace stemma::worker {

class CudaPageLock final : public PageLock {
 public:
  absl::Status Lock(void* begin, int64_t bytes) override;
  void Unlock(void* begin) override;
};

}  // namespace stemma::worker
