#include "worker/rpc/session.h"

#include <unistd.h>

#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/system_memory.h"
#include "glog/logging.h"
#include "grpcpp/grpcpp.h"
#include "stemma/worker/v1/worker.grpc.pb.h"

namespace stemma {
namespace {

using worker::v1::ServerMessage;
using worker::v1::WorkerMessage;
using Stream = grpc::ClientReaderWriter<WorkerMessage, ServerMessage>;

constexpr absl::Duration kHeartbeatEvery = absl::Seconds(1);
constexpr absl::Duration kEngineStopsWithin = absl::Seconds(2);
constexpr int kMessageBytesMax = 64 << 20;

std::shared_ptr<grpc::Channel> Dial(const std::string& server) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), arguments);
}

WorkerMessage RegisterMessage(const std::string& incarnation) {
  WorkerMessage message;
  worker::v1::Register& to = *message.mutable_register_();
  to.set_incarnation(incarnation);
  to.set_pid(getpid());
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  to.set_host(host);
  to.set_version(STEMMA_VERSION);
  to.set_device("cpu");
  to.set_memory_bytes(static_cast<uint64_t>(MachineMemoryBytes()));
  to.set_memory_free_bytes(static_cast<uint64_t>(AvailableMemoryBytes()));  // the host's too: one memory
  for (v1::WaveLayout layout : {v1::ONE_BY_ONE, v1::PADDED, v1::PACKED}) to.add_layouts(layout);
  return message;
}

// The stream's writing side: one writer at a time.
class Writer {
 public:
  explicit Writer(Stream& stream) : stream_(stream) {}
  void Send(const WorkerMessage& message) {
    absl::MutexLock lock(&mutex_);
    stream_.Write(message);  // false: the stream is broken, which its reader sees too
  }

 private:
  absl::Mutex mutex_;
  Stream& stream_;
};

// Sends heartbeats until it is destroyed.
class Heartbeats {
 public:
  Heartbeats(EngineThread& engine, Writer& writer)
      : thread_([this, &engine, &writer] {
          while (!stop_.WaitForNotificationWithTimeout(kHeartbeatEvery)) {
            WorkerMessage message;
            *message.mutable_heartbeat() = engine.Heartbeat();
            writer.Send(message);
          }
        }) {}
  ~Heartbeats() {
    stop_.Notify();
    thread_.join();
  }

 private:
  absl::Notification stop_;
  std::thread thread_;
};

// The engine's failure to start, told by its thread.
class StartFailure {
 public:
  void Set(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    status_ = status;
  }
  absl::Status Get() {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// What came over the stream until it ended.
struct Heard {
  bool configure = false, shutdown = false;
};

Heard ReadUntilEnd(Stream& stream, EngineThread& engine) {
  Heard heard;
  ServerMessage message;
  while (!heard.shutdown && stream.Read(&message)) {
    heard.configure |= message.has_configure();
    heard.shutdown = message.has_shutdown();
    if (!heard.shutdown) engine.Post(std::move(message));
    message.Clear();
  }
  return heard;
}

// The server found this machine too small, or its own configuration, and said so instead of Configure. Later the same
// code is gRPC's own, of a message above the limit.
bool IsRefusal(const Heard& heard, const grpc::Status& status) {
  return !heard.configure && (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ||
                              status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace

absl::Status RunSession(const SessionOptions& options, EngineFactory factory) {
  const auto stub = worker::v1::WorkerService::NewStub(Dial(options.server));
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = stub->Session(&context);
  Writer writer(*stream);
  StartFailure failure;
  writer.Send(RegisterMessage(options.incarnation));
  // Not destroyed while it is inside a wave: see the header.
  auto engine = std::make_unique<EngineThread>(
      options.incarnation, std::move(factory), [&writer](WorkerMessage message) { writer.Send(message); },
      [&](const absl::Status& status) {
        failure.Set(status);
        context.TryCancel();
      });
  Heard heard;
  {
    Heartbeats heartbeats(*engine, writer);
    heard = ReadUntilEnd(*stream, *engine);
  }
  if (!engine->Stop(kEngineStopsWithin)) {
    LOG(ERROR) << "the stream ended inside a wave; leaving";
    LOG_IF(INFO, heard.shutdown) << "shutdown";
    google::FlushLogFiles(google::INFO);
    _exit(heard.shutdown ? 0 : 1);
  }
  if (absl::Status status = failure.Get(); !status.ok()) return status;
  if (heard.shutdown) return absl::OkStatus();
  const grpc::Status status = stream->Finish();
  if (IsRefusal(heard, status)) {
    return absl::ResourceExhaustedError(absl::StrCat(options.server, " refused: ", status.error_message()));
  }
  return absl::UnavailableError(absl::StrCat(
      "the stream to ", options.server, " ended: ", status.ok() ? "the server closed it" : status.error_message()));
}

}  // namespace stemma
