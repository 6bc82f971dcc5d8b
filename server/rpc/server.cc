#include "server/rpc/server.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/status_macros.h"
#include "common/stop_times.h"
#include "glog/logging.h"
#include "grpc/grpc.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/coordinator/calibration_file.h"
#include "server/core/request_plan.h"
#include "server/rpc/acceptor.h"
#include "server/rpc/training_service.h"
#include "server/rpc/worker_service.h"

namespace stemma {
namespace {

constexpr int kStreamsMax = 64;  // of one connection
constexpr int kHandshakeMs = 10'000;
constexpr int kPingMinimumMs = 20'000;  // clients ping every 30 s
constexpr int kKeepaliveMs = 30'000;
constexpr int kKeepaliveTimeoutMs = 10'000;

// gRPC unpacks a message before it checks the limit on its size, so a packed one is refused by its encoding.
void RefuseCompression(grpc::ServerBuilder& builder) {
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

void SetArguments(const v1::Limits& limits, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(limits.message_bytes()));
  builder.SetMaxSendMessageSize(-1);
  RefuseCompression(builder);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsMax);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingMinimumMs);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

std::string WithPort(const std::string& listen, int port) {
  const size_t colon = listen.rfind(':');
  return absl::StrCat(listen.substr(0, colon), ":", port);
}

absl::StatusOr<std::unique_ptr<Acceptor>> OpenAcceptor(const std::string& listen, const v1::Limits& limits) {
  const size_t colon = listen.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(listen.substr(colon + 1), &port) || port > UINT16_MAX) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", listen, ": it is not HOST:PORT"));
  }
  std::string host = listen.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return Acceptor::Open({.host = host, .port = static_cast<uint16_t>(port), .connections_max = limits.connections()});
}

gpr_timespec RealtimeOf(absl::Time time) {
  const timespec parts = absl::ToTimespec(time);
  return {.tv_sec = parts.tv_sec, .tv_nsec = static_cast<int32_t>(parts.tv_nsec), .clock_type = GPR_CLOCK_REALTIME};
}

}  // namespace

struct Server::Rpc {
  std::unique_ptr<TrainingServiceRpc> training;
  std::unique_ptr<WorkerServiceRpc> worker;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<Acceptor> acceptor;
  absl::Mutex mutex;
  bool ready ABSL_GUARDED_BY(mutex) = false;
  bool draining ABSL_GUARDED_BY(mutex) = false;
};

Server::Server(const Clock& clock) : clock_(clock), rpc_(std::make_unique<Rpc>()) {}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(ServerOptions options, const Clock& clock) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  std::unique_ptr<Server> self(new Server(clock));
  Rpc& rpc = *self->rpc_;
  PlanFunction plan = MakePlanFunction(options.model);
  const RunNumbers numbers = NumbersOfRun(options.coordinator.config.dtype());
  options.coordinator.calibration = ReadCalibration(options.coordinator.data_directory);
  self->coordinator_ = std::make_unique<Coordinator>(std::move(options.coordinator), std::move(plan), clock,
                                                     [raw = self.get()](bool ready) { raw->SetReady(ready); });
  rpc.training =
      std::make_unique<TrainingServiceRpc>(*self->coordinator_, options.limits, options.model, numbers, clock);
  rpc.worker = std::make_unique<WorkerServiceRpc>(*self->coordinator_);

  grpc::ServerBuilder builder;
  SetArguments(options.limits, builder);
  ASSIGN_OR_RETURN(rpc.acceptor, OpenAcceptor(options.listen, options.limits));
  rpc.acceptor->AddTo(builder);
  builder.RegisterService(rpc.training.get());
  builder.RegisterService(rpc.worker.get());
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::UnavailableError(absl::StrCat("gRPC cannot serve on ", options.listen));
  rpc.acceptor->Start(clock);
  self->address_ = WithPort(options.listen, rpc.acceptor->port());
  {
    absl::MutexLock lock(&rpc.mutex);
    rpc.server = std::move(server);
    rpc.server->GetHealthCheckService()->SetServingStatus("liveness", true);
  }
  self->SetReady(false);
  return self;
}

Server::~Server() {
  if (rpc_->server == nullptr) return;
  rpc_->acceptor->Stop();
  rpc_->server->Shutdown(gpr_inf_past(GPR_CLOCK_REALTIME));
  rpc_->server->Wait();
  coordinator_->Stop();
}

void Server::SetReady(bool ready) {
  absl::MutexLock lock(&rpc_->mutex);
  if (rpc_->server == nullptr || rpc_->draining) return;
  rpc_->ready = ready;
  auto* health = rpc_->server->GetHealthCheckService();
  for (const char* name : {"", "readiness", "stemma.v1.TrainingService", "stemma.worker.v1.WorkerService"}) {
    health->SetServingStatus(name, ready);
  }
}

void Server::Drain(absl::Duration within) {
  SetReady(false);
  {
    absl::MutexLock lock(&rpc_->mutex);
    rpc_->draining = true;
  }
  coordinator_->Drain(within);
  // The coordinator ends what runs at the deadline; kCloseWithin is for its turn to come.
  if (!coordinator_->WaitDrained(within + kCloseWithin)) LOG(ERROR) << "what runs does not end: its calls are dropped";
  rpc_->acceptor->Stop();
  rpc_->server->Shutdown(RealtimeOf(clock_.Now() + kCloseWithin));
}

}  // namespace stemma
