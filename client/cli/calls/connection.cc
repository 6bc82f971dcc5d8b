#include "client/cli/calls/connection.h"

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/connection_pings.h"
#include "common/base/message_sizes.h"
#include "common/rpc/connected_within.h"
#include "common/rpc/connection_cause.h"
#include "common/rpc/grpc_log.h"
#include "common/rpc/tls_check.h"
#include "common/rpc/tls_credentials.h"
#include "grpc/support/time.h"
#include "grpcpp/create_channel.h"

namespace stemma::cli {
namespace {

constexpr int kRedialMsMax = 1'000;
constexpr double kProbeS = 0.3;

// A span is a deadline relative to now.
gpr_timespec FromNow(double seconds) { return gpr_time_from_millis(static_cast<int64_t>(seconds * 1e3), GPR_TIMESPAN); }

// Makes one call, which tells why there is no connection: a channel's state does not.
std::string WhyNot(const std::shared_ptr<grpc::Channel>& channel, const TlsFiles& tls) {
  grpc::ClientContext context;
  SetTimeout(context, kProbeS);
  v1::ServerInfo info;
  const auto stub = v1::TrainingService::NewStub(channel);
  return ConnectionCause(stub->GetServerInfo(&context, {}, &info).error_message(), tls);
}

// Ends what is said of a server beyond this machine: gRPC reads the variables by itself.
constexpr char kProxyHint[] =
    " Where grpc_proxy, https_proxy or http_proxy is set, the connection goes through that proxy, unless no_proxy "
    "names the host";

}  // namespace

void SetTimeout(grpc::ClientContext& context, double seconds) { context.set_deadline(FromNow(seconds)); }

Connection::Connection(std::shared_ptr<grpc::Channel> channel, double timeout_s)
    : channel_(std::move(channel)), stub_(v1::TrainingService::NewStub(channel_)), timeout_s_(timeout_s) {}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const ConnectionOptions& options) {
  const absl::StatusOr<HostPort> address = ParseDialAddress(options.address);
  if (!address.ok()) return UsageError(absl::StrCat("--server: ", address.status().message()));
  const absl::Status tls = CheckTlsFiles(options.tls, TlsSide::kClient, RealClock().Now()).status();
  if (!tls.ok()) return UsageError(std::string(tls.message()));
  QuietGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kReceivedBytesMax);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingEveryMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingAnsweredWithinMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kRedialMsMax);
  // A server may come back at another address: the name is asked for again at each try, not only every 30 s.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kRedialMsMax);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // No proxy reaches a server of this machine.
  if (address->loopback) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  auto channel = grpc::CreateCustomChannel(options.address, ChannelCredentialsOf(options.tls), arguments);
  if (!ConnectedWithin(*channel, options.connect_timeout_s)) {
    const std::string cause = WhyNot(channel, options.tls);
    return ConnectError(absl::StrCat("no connection to ", options.address, " within ", options.connect_timeout_s, " s",
                                     cause.empty() ? "" : absl::StrCat(" (", cause, ")"),
                                     "; is `stemma local` running there?", address->loopback ? "" : kProxyHint));
  }
  return std::unique_ptr<Connection>(new Connection(std::move(channel), options.timeout_s));
}

}  // namespace stemma::cli
