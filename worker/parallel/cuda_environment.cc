#include "worker/parallel/cuda_environment.h"

#include <glog/logging.h>

#include <cstdlib>
#include <optional>

#include "worker/parallel/network_interface.h"

namespace stemma::worker {
namespace {

void Tell(const char* variable, const std::string& value) { setenv(variable, value.c_str(), /*overwrite=*/0); }

// NCCL looks for an interface by itself, and may take one of a network that the other hosts do not reach, or that
// others do.
void TellInterfaceOf(const std::string& own_host) {
  const std::optional<std::string> interface = InterfaceOf(own_host);
  if (!interface) return;
  LOG(INFO) << "NCCL uses the interface of " << own_host << ", "
            << *interface << ", unless NCCL_SOCKET_IFNAME names another";
  Tell("NCCL_SOCKET_IFNAME", "=" + *interface);
}

}  // namespace

void TellCuda() {
  Tell("CUDA_DEVICE_MAX_CONNECTIONS", "32");
  Tell("CUDA_MODULE_LOADING", "EAGER");
}

void TellNccl(const std::string& own_host) {
  TellInterfaceOf(own_host);
  Tell("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0");
  Tell("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0");
}

}  // namespace stemma::worker
