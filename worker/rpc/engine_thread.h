// The engine thread: creates the engine and makes every call to it, in the order the server sent the messages. Answers
// leave through a sink.
//
// Thread safety: Post, Abort and Heartbeat may be called from any thread. Post blocks when kMessagesMax wait: the
// stream is then not read, and the server is held back.
// The heartbeat's progress grows with every message that the engine takes and every wave that it ends, over all jobs: a
// server that sees it stand still knows that the engine hangs.
// An Abort overtakes what waits: the call it names sees `cancelled` between two waves.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "stemma/internal/v1/worker.pb.h"
#include "worker/engine/engine.h"

namespace stemma::worker {

using EngineFactory = std::function<absl::StatusOr<std::unique_ptr<Engine>>(const internal::v1::Configure& configure,
                                                                            const std::string& incarnation)>;

class EngineThread {
 public:
  static constexpr size_t kMessagesMax = 64;

  // `send` may be called from the engine thread until Stop; `fail` once, when the engine cannot be created.
  EngineThread(std::string incarnation, EngineFactory factory, std::function<void(internal::v1::WorkerMessage)> send,
               std::function<void(const absl::Status&)> fail);
  ~EngineThread();

  void Post(internal::v1::ServerMessage message);
  internal::v1::Heartbeat Heartbeat();
  // Cancels what runs; true once the thread has ended. False: it is still inside a wave after `timeout`.
  bool Stop(absl::Duration timeout);

 private:
  void Run();
  bool Next(internal::v1::ServerMessage& message);
  void Dispatch(internal::v1::ServerMessage& message);
  void Configure(const internal::v1::Configure& configure);
  void Prepare(const internal::v1::Prepare& prepare);
  void Apply(const internal::v1::Apply& apply);
  void LogProb(const internal::v1::LogProb& log_prob);
  void Export(const internal::v1::Export& request);
  void Refuse(const internal::v1::StepKey& key, const absl::Status& status);
  EngineHooks Hooks();
  // Sets what an Abort has to name to end the call that runs.
  void SetRunning(const std::string& what, const std::string& phase);
  bool IsCancelled();
  void SetPhase(const std::string& phase);

  const std::string incarnation_;
  const EngineFactory factory_;
  const std::function<void(internal::v1::WorkerMessage)> send_;
  const std::function<void(const absl::Status&)> fail_;
  std::unique_ptr<Engine> engine_;  // of the engine thread

  Mutex mutex_;
  std::deque<internal::v1::ServerMessage> messages_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> aborted_ ABSL_GUARDED_BY(mutex_);  // until their Abort is reached in the queue
  std::string running_ ABSL_GUARDED_BY(mutex_);
  internal::v1::Heartbeat heartbeat_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace stemma::worker
