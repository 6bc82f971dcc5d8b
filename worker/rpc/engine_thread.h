// The engine thread: creates the engine and makes every call to it, in the order the server sent the messages. Answers
// leave through a sink.
//
// A call that ends with Unavailable ends the generation: another rank has gone. Nothing more is computed or answered,
// and the engine is not destroyed, which could wait for the ranks that are left: the process ends instead.
//
// Thread safety: Post and Heartbeat may be called from any thread. Post blocks when kMessagesMax wait: the stream is
// then not read, and the server is held back.
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

class EngineThread {
 public:
  static constexpr size_t kMessagesMax = 64;

  // `send` may be called from the engine thread, and at the same time from that which writes a checkpoint, until Stop;
  // `fail` once, when the engine cannot be created or its generation is over (Unavailable).
  EngineThread(WorkerIdentity identity, EngineFactory factory, std::function<void(internal::v1::WorkerMessage)> send,
               std::function<void(const absl::Status&)> fail);
  ~EngineThread();  // REQUIRES: Stop was true, or can be

  void Post(internal::v1::ServerMessage message);
  internal::v1::Heartbeat Heartbeat();
  // Cancels what runs; true once the thread has ended. False: it is still inside a wave after `timeout`, or the
  // generation is over; this object is then left as it is until the process ends.
  bool Stop(absl::Duration timeout);
  // Returns the functions that the thread is in; "" where it does not answer. REQUIRES: one thread asks.
  std::string Stack();

 private:
  void Run();
  bool Next(internal::v1::ServerMessage& message);
  void Configure(const internal::v1::Configure& configure);
  // These end the generation where they return an error: Unavailable.
  absl::Status Dispatch(internal::v1::ServerMessage& message);
  absl::Status Prepare(const internal::v1::Prepare& prepare);
  absl::Status Apply(const internal::v1::Apply& apply);
  absl::Status LogProb(const internal::v1::LogProb& log_prob);
  absl::Status Verify(const internal::v1::Verify& verify);
  absl::Status Export(const internal::v1::Export& request);
  absl::Status Save(const internal::v1::Save& request);
  // Answers with a Refused, but for Unavailable.
  absl::Status Refuse(const internal::v1::StepKey& key, const absl::Status& status);
  EngineHooks Hooks();
  // Sets what an Abort has to name to end the call that runs.
  void SetRunning(const std::string& what, const std::string& phase);
  bool IsCancelled();
  void SetPhase(const std::string& phase);

  const WorkerIdentity identity_;
  const EngineFactory factory_;
  const std::function<void(internal::v1::WorkerMessage)> send_;
  const std::function<void(const absl::Status&)> fail_;
  std::unique_ptr<Engine> engine_;  // of the engine thread, as is the rank
  uint32_t rank_ = 0;

  Mutex mutex_;
  std::deque<internal::v1::ServerMessage> messages_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> aborted_ ABSL_GUARDED_BY(mutex_);  // until their Abort is reached in the queue
  std::string running_ ABSL_GUARDED_BY(mutex_);
  internal::v1::Heartbeat heartbeat_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool generation_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace stemma::worker
