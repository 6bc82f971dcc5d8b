#include "common/rpc/grpc_log.h"

#include <string_view>

#include "common/base/clock.h"
#include "common/base/log_limit.h"
#include "common/base/steady_time.h"
#include "glog/logging.h"
#include "grpc/support/log.h"

namespace stemma {
namespace {

constexpr uint64_t kLines = 20;
constexpr std::string_view kHandshakeFailed = "Handshake failed", kReason = "SSL routines:";

void Keep(gpr_log_func_args* args) { VLOG(1) << "gRPC: " << args->message; }

// "Handshake failed with fatal error SSL_ERROR_SSL: error:0A0000C7:SSL routines::peer did not return a certificate."
void KeepAllButHandshakes(gpr_log_func_args* args) {
  Keep(args);
  const std::string_view message = args->message;
  const size_t reason = message.find(kReason);
  if (message.starts_with(kHandshakeFailed) && reason != message.npos) {
    LogRefusedHandshake(std::string(message.substr(reason + kReason.size() + 1)));
  }
}

}  // namespace

void QuietGrpc() { gpr_set_log_function(Keep); }

void QuietGrpcOfServer() { gpr_set_log_function(KeepAllButHandshakes); }

void LogRefusedHandshake(const std::string& why) {
  static LogLimit& limit = *new LogLimit(kLines);  // of the process, as gRPC's log is
  if (limit.Take(SteadyNow(RealClock()))) LOG(WARNING) << "somebody is refused in TLS: " << why << limit.LeftOut();
}

}  // namespace stemma
