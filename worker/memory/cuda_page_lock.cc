#include "worker/memory/cuda_page_lock.h"

#include <glog/logging.h>

#include <cstddef>

#include "worker/memory/cuda_status.h"

namespace stemma::worker {

absl::Status CudaPageLock::Lock(void* begin, int64_t bytes) {
  return CudaStatus(cudaHostRegister(begin, static_cast<size_t>(bytes), cudaHostRegisterPortable), "cudaHostRegister");
}

void CudaPageLock::Unlock(void* begin) {
  const absl::Status status = CudaStatus(cudaHostUnregister(begin), "cudaHostUnregister");
  // A device that failed before fails every later call too; the pages go with the process.
  LOG_IF(ERROR, !status.ok()) << status;
}

}  // namespace stemma::worker
