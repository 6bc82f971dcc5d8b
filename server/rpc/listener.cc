#include "server/rpc/listener.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/connection_pings.h"
#include "common/base/status_macros.h"
#include "common/rpc/tls_credentials.h"
#include "grpc/grpc.h"
#include "grpcpp/ext/health_check_service_server_builder_option.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/impl/server_builder_option.h"

namespace stemma::server {
namespace {

constexpr int kHandshakeMs = 10'000;
constexpr int kReflectionThreads = 32;  // gRPC answers reflection alone by threads

// gRPC's plugins are the process's, not one server's; reflection is the only one that we link.
class NoPlugins final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override { plugins->clear(); }
};

// gRPC unpacks a message before it checks the limit on its size, so a packed one is refused by its encoding.
void RefuseCompression(grpc::ServerBuilder& builder) {
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

void SetArguments(const ListenerOptions& options, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(options.message_bytes_max);
  builder.SetMaxSendMessageSize(-1);
  RefuseCompression(builder);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.streams_max);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kPingEveryMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingAnsweredWithinMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingsApartMsMin);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  if (options.idle_ms_max > 0) builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, options.idle_ms_max);
}

}  // namespace

absl::StatusOr<Listener> Listen(const ListenerOptions& options, const Clock& clock) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetArguments(options, builder);
  if (!options.reflection) builder.SetOption(std::make_unique<NoPlugins>());
  if (options.reflection) builder.SetResourceQuota(grpc::ResourceQuota("reflection").SetMaxThreads(kReflectionThreads));
  if (!options.health) builder.SetOption(std::make_unique<grpc::HealthCheckServiceServerBuilderOption>(nullptr));
  HostPort address = options.address;
  Listener listener;
  ASSIGN_OR_RETURN(listener.acceptor, Acceptor::Open({.host = address.host,
                                                      .port = address.port,
                                                      .connections_max = options.connections_max,
                                                      .own_max = options.own_max}));
  listener.acceptor->AddTo(builder, ServerCredentialsOf(options.tls));
  if (options.service != nullptr) builder.RegisterService(options.service);
  if (options.nothing != nullptr) builder.RegisterCallbackGenericService(options.nothing);
  listener.server = builder.BuildAndStart();
  if (listener.server == nullptr) {
    return absl::UnavailableError(absl::StrCat("gRPC cannot serve on ", address.Text()));
  }
  if (absl::Status started = listener.acceptor->Start(clock); !started.ok()) {
    listener.server->Shutdown();
    return started;
  }
  address.port = listener.acceptor->port();
  listener.address = address.Text();
  return listener;
}

}  // namespace stemma::server
