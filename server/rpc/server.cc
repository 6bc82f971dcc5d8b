#include "server/rpc/server.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/mesh.h"
#include "common/base/message_sizes.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/steady_time.h"
#include "common/base/stop_times.h"
#include "common/rpc/grpc_log.h"
#include "glog/logging.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/coordinator/calibration_file.h"
#include "server/protocol/request_plan.h"
#include "server/rpc/certificate_watch.h"
#include "server/rpc/from_now.h"
#include "server/rpc/listener.h"
#include "server/rpc/metrics_listener.h"
#include "server/rpc/training_service.h"
#include "server/rpc/worker_service.h"

namespace stemma::server {
namespace {

// Calls at a time of one connection. A client's are four for each request that may be in flight, within these bounds.
constexpr uint64_t kClientStreamsAtLeast = 1024, kClientStreamsAtMost = 1 << 16;
constexpr int kWorkerStreamsMax = 4, kOpsStreamsMax = 16;
constexpr uint64_t kOpsConnectionsMax = 64;
constexpr int kOpsMessageBytesMax = 64 << 10;
// Where few connections are held, those without a call end, so that who opens them and says nothing keeps nobody out
// for long. A worker's stream is a call for as long as it lasts.
constexpr int kIdleMsMax = 10'000;

// Returns how many calls of one connection are answered at a time. gRPC makes further ones wait until an earlier one
// ends, and calls that wait for a request last as long as it does: with too few, a CancelRequest or a GetModel would
// wait behind them. So there is room for four calls a request: the one that sent it, and others that ask for it. A call
// that waits takes about 15 KiB; the bytes of requests have a limit of their own (limits.receiving_bytes).
int ClientStreamsMax(const v1::Limits& limits) {
  return static_cast<int>(std::clamp(4 * limits.requests_in_flight(), kClientStreamsAtLeast, kClientStreamsAtMost));
}

// Returns how many connections the workers' listener takes: those of a full mesh, of one before it whose hosts are gone
// without a word, and of some that the server turns away.
uint64_t WorkerConnectionsMax(uint32_t ranks) { return 2 * uint64_t{ranks} + 16; }

}  // namespace

struct Server::Rpc {
  // Says on the ops listener, once that is open, how things stand.
  void ShowHealth() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  std::unique_ptr<TrainingServiceRpc> training;
  std::unique_ptr<WorkerServiceRpc> worker;
  grpc::CallbackGenericService nothing;
  std::unique_ptr<CertificateWatch> certificates;  // with TLS
  std::unique_ptr<MetricsListener> metrics;
  Listener clients, workers;
  Mutex mutex;
  Listener ops ABSL_GUARDED_BY(mutex);
  bool ready ABSL_GUARDED_BY(mutex) = false;
  bool draining ABSL_GUARDED_BY(mutex) = false;
  Answering answering ABSL_GUARDED_BY(mutex) = Answering::kAnswers;
};

void Server::Rpc::ShowHealth() {
  if (ops.server == nullptr) return;
  auto* health = ops.server->GetHealthCheckService();
  const bool serves = ready && !draining && answering == Answering::kAnswers;
  for (const char* name : {"", "readiness", "stemma.v1.TrainingService"}) health->SetServingStatus(name, serves);
  health->SetServingStatus("liveness", answering != Answering::kHangs);
}

Server::Server(const Clock& clock) : clock_(clock), rpc_(std::make_unique<Rpc>()) {}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(ServerOptions options, const Clock& clock) {
  QuietGrpcOfServer();
  std::unique_ptr<Server> self(new Server(clock));
  Rpc& rpc = *self->rpc_;
  PlanFunction plan = MakePlanFunction(options.model);
  const uint32_t ranks = NumRanks(options.coordinator.config.mesh());
  const RunNumbers numbers = NumbersOfRun(RunDtypeOf(options.coordinator.config.dtype()));
  AnswerWatch watch(SteadyNow(clock), options.coordinator.worker_lost_after, options.coordinator.worker_stalled_after);
  options.coordinator.calibration = ReadCalibration(options.coordinator.data_directory);
  self->coordinator_ =
      std::make_unique<Coordinator>(std::move(options.coordinator), std::move(plan), std::move(options.storage), clock,
                                    [raw = self.get()](bool ready) { raw->SetReady(ready); });
  rpc.training = std::make_unique<TrainingServiceRpc>(*self->coordinator_, options.limits, options.model, numbers);
  rpc.worker = std::make_unique<WorkerServiceRpc>(*self->coordinator_, options.worker_secret);
  if (options.tls.any()) rpc.certificates = std::make_unique<CertificateWatch>(options.tls, clock);
  RETURN_IF_ERROR(self->OpenListeners(options, ranks));
  self->watch_ = std::make_unique<AnswerWatchThread>(
      [raw = self.get()](std::function<void()> answer) { raw->coordinator_->Ask(std::move(answer)); }, std::move(watch),
      clock, [raw = self.get()](Answering answering) { raw->SetAnswering(answering); });
  return self;
}

absl::Status Server::OpenMetrics(const ServerOptions& options) {
  if (!options.metrics_listen) return absl::OkStatus();
  const auto ask = [raw = coordinator_.get()](std::function<void(ServerNumbers)> take) {
    raw->AskNumbers(std::move(take));
  };
  const ServerFacts facts = {STEMMA_VERSION, absl::ToDoubleSeconds(clock_.Now() - absl::UnixEpoch())};
  const auto certificates = [watch = rpc_->certificates.get()]() -> std::optional<CertificateState> {
    if (watch == nullptr) return std::nullopt;
    return watch->State();
  };
  ASSIGN_OR_RETURN(rpc_->metrics, MetricsListener::Open(*options.metrics_listen, facts, ask, certificates));
  metrics_address_ = rpc_->metrics->address();
  return absl::OkStatus();
}

// Health first, clients last: whoever reaches a listener finds what stands behind it.
absl::Status Server::OpenListeners(const ServerOptions& options, uint32_t ranks) {
  ASSIGN_OR_RETURN(Listener ops, Listen({.address = options.ops_listen,
                                         .nothing = &rpc_->nothing,
                                         .own_max = kOpsConnectionsMax,
                                         .message_bytes_max = kOpsMessageBytesMax,
                                         .streams_max = kOpsStreamsMax,
                                         .health = true,
                                         .idle_ms_max = kIdleMsMax},
                                        clock_));
  ops_address_ = ops.address;
  {
    MutexLock lock(&rpc_->mutex);
    rpc_->ops = std::move(ops);
  }
  SetReady(false);
  RETURN_IF_ERROR(OpenMetrics(options));
  ASSIGN_OR_RETURN(rpc_->workers, Listen({.address = options.worker_listen,
                                          .service = rpc_->worker.get(),
                                          .own_max = WorkerConnectionsMax(ranks),
                                          .message_bytes_max = kReceivedBytesMax,
                                          .streams_max = kWorkerStreamsMax,
                                          .idle_ms_max = kIdleMsMax,
                                          .tls = options.tls},
                                         clock_));
  worker_address_ = rpc_->workers.address;
  ASSIGN_OR_RETURN(rpc_->clients, Listen({.address = options.listen,
                                          .service = rpc_->training.get(),
                                          .connections_max = options.limits.connections(),
                                          .message_bytes_max = static_cast<int>(options.limits.message_bytes()),
                                          .streams_max = ClientStreamsMax(options.limits),
                                          .reflection = options.reflection,
                                          .tls = options.tls},
                                         clock_));
  address_ = rpc_->clients.address;
  return absl::OkStatus();
}

std::string Server::Stop(absl::Duration within) {
  watch_ = nullptr;
  rpc_->metrics = nullptr;  // a read would wait for a coordinator that answers nothing any more
  for (Listener* listener : {&rpc_->clients, &rpc_->workers}) {
    if (listener->server == nullptr) continue;
    listener->acceptor->Stop();
    listener->server->Shutdown(gpr_inf_past(GPR_CLOCK_MONOTONIC));
    listener->server->Wait();
  }
  return coordinator_ == nullptr ? "" : coordinator_->StopBy(StopDeadlineIn(within));
}

Server::~Server() {
  Stop(absl::InfiniteDuration());  // the coordinator may still set health
  MutexLock lock(&rpc_->mutex);
  if (rpc_->ops.server == nullptr) return;
  rpc_->ops.acceptor->Stop();
  rpc_->ops.server->Shutdown(gpr_inf_past(GPR_CLOCK_MONOTONIC));
}

void Server::SetReady(bool ready) {
  MutexLock lock(&rpc_->mutex);
  rpc_->ready = ready;
  rpc_->ShowHealth();
}

void Server::SetAnswering(Answering answering) {
  MutexLock lock(&rpc_->mutex);
  rpc_->answering = answering;
  rpc_->ShowHealth();
}

bool Server::Drain(absl::Duration within) {
  const absl::Time last = SteadyNow(RealClock()) + within + kCloseWithin;
  {
    MutexLock lock(&rpc_->mutex);
    rpc_->draining = true;
    rpc_->ShowHealth();
  }
  coordinator_->Drain(within);
  // The coordinator ends what runs at the deadline; kCloseWithin is for its turn to come.
  const bool drained = coordinator_->WaitDrained(within + kCloseWithin);
  LOG_IF(ERROR, !drained) << "what runs does not end: its calls are dropped";
  const gpr_timespec end = FromNow(std::clamp(last - SteadyNow(RealClock()), absl::ZeroDuration(), kCloseWithin));
  for (Listener* listener : {&rpc_->clients, &rpc_->workers}) {
    listener->acceptor->Stop();
    listener->server->Shutdown(end);
  }
  return drained;
}

}  // namespace stemma::server
