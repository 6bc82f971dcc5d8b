#include "client/cli/calls/connection.h"

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/connection_pings.h"
#include "common/base/message_sizes.h"
#include "grpc/support/time.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace stemma::cli {
namespace {

constexpr int kRedialMsMax = 1'000;

// A span is a deadline relative to now.
gpr_timespec FromNow(double seconds) { return gpr_time_from_millis(static_cast<int64_t>(seconds * 1e3), GPR_TIMESPAN); }

// WaitForConnected would begin its span anew at each try to connect, and each failure.
bool ConnectedWithin(grpc::Channel& channel, double seconds) {
  const double end_s = RealClock().MonotonicSeconds() + seconds;
  for (auto state = channel.GetState(true); state != GRPC_CHANNEL_READY; state = channel.GetState(true)) {
    const double left_s = end_s - RealClock().MonotonicSeconds();
    if (left_s <= 0 || !channel.WaitForStateChange(state, FromNow(left_s))) return false;
  }
  return true;
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
  auto channel = grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments);
  if (!ConnectedWithin(*channel, options.connect_timeout_s)) {
    return ConnectError(absl::StrCat("no connection to ", options.address, " within ", options.connect_timeout_s,
                                     " s; is `stemma local` running there?", address->loopback ? "" : kProxyHint));
  }
  return std::unique_ptr<Connection>(new Connection(std::move(channel), options.timeout_s));
}

}  // namespace stemma::cli
