#include "common/rpc/grpc_log.h"

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

void KeepAllButHandshakes(gpr_log_func_args* args) {
  Keep(args);
  if (const std::string why = HandshakeFailure(args->message); !why.empty()) LogRefusedHandshake(why);
}

}  // namespace

void QuietGrpc() { gpr_set_log_function(Keep); }

void QuietGrpcOfServer() { gpr_set_log_function(KeepAllButHandshakes); }

// "Handshake failed with fatal error SSL_ERROR_SSL: error:0A0000C7:SSL routines::peer did not return a certificate."
std::string HandshakeFailure(std::string_view grpc_line) {
  const size_t routines = grpc_line.find(kReason);
  if (!grpc_line.starts_with(kHandshakeFailed) || routines == grpc_line.npos) return "";
  std::string_view why = grpc_line.substr(routines + kReason.size());
  while (why.starts_with(':')) why.remove_prefix(1);
  return std::string(why);
}

void LogRefusedHandshake(const std::string& why) {
  static LogLimit& limit = *new LogLimit(kLines);  // of the process, as gRPC's log is
  if (limit.Take(SteadyNow(RealClock()))) LOG(WARNING) << "somebody is refused in TLS: " << why << limit.LeftOut();
}

}  // namespace stemma
