#include "worker/rpc/session.h"

#include <unistd.h>

#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/connection_pings.h"
#include "common/base/flag.h"
#include "common/base/machine.h"
#include "common/base/message_sizes.h"
#include "common/base/mutex.h"
#include "common/base/system_memory.h"
#include "common/base/worker_proof.h"
#include "common/base/worker_secret.h"
#include "common/base/worker_version.h"
#include "common/rpc/connected_within.h"
#include "common/rpc/connection_cause.h"
#include "common/rpc/grpc_log.h"
#include "common/rpc/tls_check.h"
#include "common/rpc/tls_credentials.h"
#include "glog/logging.h"
#include "grpcpp/grpcpp.h"
#include "stemma/internal/v1/worker.grpc.pb.h"
#include "worker/rpc/engine_thread.h"
#include "worker/rpc/evidence.h"
#include "worker/rpc/own_address.h"

namespace stemma::worker {
namespace {

using internal::v1::ServerMessage;
using internal::v1::WorkerMessage;
using Stream = grpc::ClientReaderWriter<WorkerMessage, ServerMessage>;

constexpr absl::Duration kHeartbeatEvery = absl::Seconds(1);
constexpr absl::Duration kEngineStopsWithin = absl::Seconds(2);
constexpr absl::Duration kServerClosesWithin = absl::Seconds(2);
constexpr int kProvesWithinMs = 20'000;
constexpr int kRedialMsMin = 200, kRedialMsMax = 2'000;
constexpr int kHandshakeMsMax = 10'000;  // a server that is busy greets late; gRPC reads it as MIN_RECONNECT_BACKOFF
constexpr int kProbeMs = 300;            // for what says why there is no connection
constexpr double kFirstWaitS = 1;        // shorter waits for the server are not worth a line
constexpr double kWaitLineS = 60;
constexpr absl::Duration kLookEvery = absl::Seconds(2);  // whether an address, or a file, is back

// Makes one call, which tells why there is no connection: a channel's state does not.
std::string WhyNot(const std::shared_ptr<grpc::Channel>& channel, const TlsFiles& tls) {
  grpc::ClientContext context;
  context.set_deadline(gpr_time_from_millis(kProbeMs, GPR_TIMESPAN));
  context.AddMetadata(kNonceMetadata, NewNonce());  // a server that is there by now takes it for a worker that begins
  const auto stub = internal::v1::WorkerService::NewStub(channel);
  return ConnectionCause(stub->Session(&context)->Finish().error_message(), tls);
}

void WaitForServer(const std::shared_ptr<grpc::Channel>& channel, const SessionOptions& options) {
  if (ConnectedWithin(*channel, kFirstWaitS)) return;
  do {
    const std::string cause = WhyNot(channel, options.tls);
    LOG(WARNING) << "no server at " << options.server << " yet" << (cause.empty() ? "" : absl::StrCat(" (", cause, ")"))
                 << "; trying again, at most " << kRedialMsMax / 1000 << " s after each try";
  } while (!ConnectedWithin(*channel, kWaitLineS));
}

// Waits until the files of TLS are whole: a session may have ended while they were renewed.
void WaitForTlsFiles(const TlsFiles& tls) {
  std::string said;
  while (true) {
    const absl::Status whole = CheckTlsFiles(tls, TlsSide::kClient, RealClock().Now()).status();
    if (whole.ok()) return;
    const std::string problem(whole.message());
    LOG_IF(WARNING, said != problem) << "waits for the files of TLS, looks again every " << kLookEvery << ": "
                                     << problem;
    said = problem;
    RealClock().Sleep(kLookEvery);
  }
}

// Waits until this host has the address that it is told to use. It had it when the process was started; a link that is
// set down takes its IPv6 addresses with it, and the connection to the server. Returns whether it waited.
bool WaitForAddress(const std::string& address) {
  if (address.empty()) return false;
  const absl::Status here = CheckAddressIsHere(address);
  if (here.ok()) return false;
  LOG(WARNING) << "waits for --address, looks again every " << kLookEvery << ": " << here.message();
  while (!CheckAddressIsHere(address).ok()) RealClock().Sleep(kLookEvery);
  return true;
}

// Returns when both are there: either may go while the other is waited for.
void WaitForServerAndAddress(const std::shared_ptr<grpc::Channel>& channel, const SessionOptions& options) {
  do {
    WaitForServer(channel, options);
  } while (WaitForAddress(options.address));
}

std::shared_ptr<grpc::Channel> Dial(const std::string& server, const TlsFiles& tls) {
  QuietGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kReceivedBytesMax);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingEveryMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingAnsweredWithinMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kRedialMsMin);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kHandshakeMsMax);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kRedialMsMax);
  // A server may come back at another address: the name is asked for again at each try, not only every 30 s.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kRedialMsMax);
  // http_proxy of the environment is for other traffic: the server is in the workers' own network.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(server, ChannelCredentialsOf(tls), arguments);
}

WorkerMessage RegisterMessage(const SessionOptions& options, const std::string& address) {
  WorkerMessage message;
  internal::v1::Register& to = *message.mutable_register_();
  to.set_incarnation(options.incarnation);
  to.set_pid(getpid());
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  to.set_host(host);
  to.set_version(WorkerVersion());
  to.set_build_id(options.build_id);
  to.set_device(options.device);
  to.set_device_id(options.device_id);
  to.set_address(address);
  to.set_cores(options.cores);
  to.set_core_group(options.core_group);
  to.set_machine(MachineId());
  to.set_memory_group(AvailableMemoryGroup());
  const DeviceMemory memory = options.device_memory();
  to.set_memory_bytes(static_cast<uint64_t>(memory.bytes));
  to.set_memory_free_bytes(static_cast<uint64_t>(memory.free_bytes));
  if (!memory.is_host) to.set_host_free_bytes(static_cast<uint64_t>(AvailableMemoryBytes()));
  for (const v1::WaveLayout layout : {v1::ONE_BY_ONE, v1::PADDED, v1::PACKED}) to.add_layouts(layout);
  return message;
}

// Empty where it cannot be told: a worker that stands alone does not need it.
std::string OwnAddress(const SessionOptions& options) {
  if (!options.address.empty()) return options.address;
  const absl::StatusOr<HostPort> server = ParseDialAddress(options.server);
  const absl::StatusOr<std::string> own = server.ok() ? OwnAddressTowards(*server) : server.status();
  if (own.ok()) return *own;
  LOG(WARNING) << own.status().message();
  return "";
}

// The stream's writing side: one writer at a time.
class Writer {
 public:
  explicit Writer(Stream& stream) : stream_(stream) {}
  void Send(const WorkerMessage& message) {
    MutexLock lock(&mutex_);
    stream_.Write(message);  // false: the stream is broken, which its reader sees too
  }

 private:
  Mutex mutex_;
  Stream& stream_;
};

// Sends heartbeats until it is destroyed.
class Heartbeats {
 public:
  Heartbeats(EngineThread& engine, Writer& writer)
      : thread_([this, &engine, &writer] {
          while (!stop_.AwaitWithin(kHeartbeatEvery)) {
            WorkerMessage message;
            *message.mutable_heartbeat() = engine.Heartbeat();
            writer.Send(message);
          }
        }) {}
  ~Heartbeats() {
    stop_.Set();
    thread_.join();
  }

 private:
  Flag stop_;
  std::thread thread_;
};

// Why the engine ends the session. Its thread calls Set in three cases. The engine could not be made, as where the
// ranks could not meet, or on_ready failed: the server is told, and closes the stream. Another rank has gone later: the
// server hears it from that rank's stream, so this one is only cancelled.
class EngineFailure {
 public:
  EngineFailure(grpc::ClientContext& context, Writer& writer) : context_(context), writer_(writer) {}
  void Set(const absl::Status& status) {
    bool made = false;
    {
      MutexLock lock(&mutex_);
      status_ = status;
      made = made_;
    }
    if (made && absl::IsUnavailable(status)) return context_.TryCancel();
    WorkerMessage message;
    message.mutable_refused()->set_message(std::string(status.message()));
    writer_.Send(message);
    if (!closed_.AwaitWithin(kServerClosesWithin)) context_.TryCancel();
  }
  // The engine is made; the server is about to hear it. A Refused means something else from then on.
  void EngineMade() {
    MutexLock lock(&mutex_);
    made_ = true;
  }
  void StreamClosed() { closed_.Set(); }
  absl::Status Get() {
    MutexLock lock(&mutex_);
    return status_;
  }

 private:
  grpc::ClientContext& context_;
  Writer& writer_;
  Flag closed_;
  Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool made_ ABSL_GUARDED_BY(mutex_) = false;
};

// What came over the stream until it ended.
struct Heard {
  std::optional<internal::v1::Configure> configure;
  bool shutdown = false;
};

Heard ReadUntilEnd(Stream& stream, EngineThread& engine) {
  Heard heard;
  ServerMessage message;
  while (!heard.shutdown && stream.Read(&message)) {
    if (message.has_configure()) heard.configure = message.configure();
    heard.shutdown = message.has_shutdown();
    if (!heard.shutdown) engine.Post(std::move(message));
    message.Clear();
  }
  return heard;
}

// The server found this machine too small, its own configuration wrong, or this worker without the secret, and said so
// instead of Configure. Later the same code is gRPC's own, of a message above the limit.
bool IsRefusal(const Heard& heard, const grpc::Status& status) {
  return !heard.configure && (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ||
                              status.error_code() == grpc::StatusCode::INVALID_ARGUMENT ||
                              status.error_code() == grpc::StatusCode::UNAUTHENTICATED);
}

absl::Status EndOf(const std::string& server, const Heard& heard, const grpc::Status& status) {
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::InvalidArgumentError(
        absl::StrCat(server, " does not take workers: give the address of the server's --worker-listen"));
  }
  if (IsRefusal(heard, status)) {
    return absl::ResourceExhaustedError(absl::StrCat(server, " refused: ", status.error_message()));
  }
  // The weights that it loaded are refused: someone has to give server or worker another directory, or another dtype.
  if (heard.configure && status.error_code() == grpc::StatusCode::FAILED_PRECONDITION) {
    return absl::FailedPreconditionError(absl::StrCat(server, " refused: ", status.error_message()));
  }
  return absl::UnavailableError(absl::StrCat(
      "the stream to ", server, " ended: ", status.ok() ? "the server closed it" : status.error_message()));
}

std::string ValueOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata, const char* key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
}

// Asks for the server's proof that it has the workers' secret. Returns the nonce of which it wants this worker's.
// Errors: ResourceExhausted - whoever answers does not have it; and those of EndOf.
absl::StatusOr<std::string> AskForProof(const std::shared_ptr<grpc::Channel>& channel, const SessionOptions& options) {
  const std::string &server = options.server, &secret = options.secret;
  const std::string nonce = NewNonce();
  grpc::ClientContext context;
  context.set_deadline(gpr_time_from_millis(kProvesWithinMs, GPR_TIMESPAN));
  context.AddMetadata(kNonceMetadata, nonce);
  const auto stub = internal::v1::WorkerService::NewStub(channel);
  const grpc::Status status = stub->Session(&context)->Finish();
  if (status.error_code() != grpc::StatusCode::UNAUTHENTICATED) return EndOf(server, {}, status);
  std::string server_nonce = ValueOf(context.GetServerTrailingMetadata(), kNonceMetadata);
  const std::string proof = ValueOf(context.GetServerTrailingMetadata(), kProofMetadata);
  if (IsNonce(server_nonce) && SameSecret(proof, ServerProof(secret, nonce, server_nonce))) return server_nonce;
  // gRPC itself answers so where the certificate is of another host.
  const std::string cause = options.tls.any() ? ConnectionCause(status.error_message(), options.tls) : "";
  if (!cause.empty()) {
    return absl::UnavailableError(absl::StrCat(server, ": ", cause));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(server,
                   " refused: it has not this worker's secret: give both one secret, or find out who has the "
                   "server's port"));
}

// One stream and all that lives with it. Destroyed from the last member up: the engine's thread uses the others.
struct Session {
  explicit Session(std::shared_ptr<grpc::Channel> dialled) : channel(std::move(dialled)) {}

  // `server_nonce`: of AskForProof.
  void Open(const std::string& secret, const std::string& server_nonce) {
    context.AddMetadata(kNonceMetadata, server_nonce);
    context.AddMetadata(kProofMetadata, WorkerProof(secret, server_nonce));
    stub = internal::v1::WorkerService::NewStub(channel);
    stream = stub->Session(&context);
    writer.emplace(*stream);
    failure.emplace(context, *writer);
  }

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<internal::v1::WorkerService::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<Stream> stream;
  std::optional<Writer> writer;
  std::optional<EngineFailure> failure;
  std::unique_ptr<EngineThread> engine;
};

}  // namespace

SessionEnd RunSession(const SessionOptions& options, EngineFactory factory) {
  WaitForTlsFiles(options.tls);
  auto session = std::make_unique<Session>(Dial(options.server, options.tls));
  WaitForServerAndAddress(session->channel, options);
  const std::string address = OwnAddress(options);
  LOG(INFO) << "registers at " << options.server << " as " << options.incarnation;
  const absl::StatusOr<std::string> nonce = AskForProof(session->channel, options);
  if (!nonce.ok()) return {.status = nonce.status()};
  session->Open(options.secret, *nonce);
  session->writer->Send(RegisterMessage(options, address));
  session->engine = std::make_unique<EngineThread>(
      WorkerIdentity{options.incarnation, address}, std::move(factory),
      [raw = session.get(), on_ready = options.on_ready](const WorkerMessage& message) {
        const absl::Status status = message.has_ready() ? on_ready() : absl::OkStatus();
        if (!status.ok()) return raw->failure->Set(status);
        if (message.has_ready()) raw->failure->EngineMade();
        raw->writer->Send(message);
      },
      [raw = session.get()](const absl::Status& status) { raw->failure->Set(status); });
  Heard heard;
  {
    Heartbeats heartbeats(*session->engine, *session->writer);
    heard = ReadUntilEnd(*session->stream, *session->engine);
  }
  session->failure->StreamClosed();
  if (heard.configure && !heard.shutdown) {  // at once: who waits for this process kills it soon
    LeaveEvidence(*heard.configure, {session->failure->Get(), session->engine->Heartbeat(), session->engine->Stack()});
  }
  SessionEnd end;
  end.engine_left = !session->engine->Stop(kEngineStopsWithin);
  end.status = session->failure->Get();
  // A rank that the server told to leave is missed by those that it has not told yet.
  if (heard.shutdown && absl::IsUnavailable(end.status)) end.status = absl::OkStatus();
  if (end.engine_left) {
    Session* const left = session.release();  // the engine's thread goes on using it until the process ends
    if (end.status.ok() && !heard.shutdown) end.status = absl::UnavailableError("the stream ended inside a wave");
    left->context.TryCancel();
  } else if (end.status.ok() && !heard.shutdown) {
    end.status = EndOf(options.server, heard, session->stream->Finish());
  }
  return end;
}

}  // namespace stemma::worker
