#include "common/rpc/grpc_log.h"

#include "glog/logging.h"
#include "grpc/support/log.h"

namespace stemma {

void QuietGrpc() {
  gpr_set_log_function([](gpr_log_func_args* args) { VLOG(1) << "gRPC: " << args->message; });
}

}  // namespace stemma
