// The GroupResults of a streaming call, written one at a time, then its status.
//
// A client is held back by what it reads: a chunk is written when the one before has left. Where one does not leave for
// limits.stream_idle_ms the call is cancelled, and what waits is dropped: results are held for nobody who does not
// read.
//
// Thread safety: safe. Finishes exactly once: after the last chunk, or at once by Abandon.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"
#include "server/rpc/idle_timer.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

class ResultStream {
 public:
  // The reactor's StartWrite and Finish.
  struct Hooks {
    std::function<void(const v1::GroupResult*)> write;
    std::function<void(const grpc::Status&)> finish;
  };

  // `context`: the call's, which outlives every write.
  ResultStream(grpc::CallbackServerContext* context, uint64_t idle_ms, Hooks hooks);

  // `call`: whose member this is; the timer keeps it alive. Comes before all that follows.
  void Start(std::weak_ptr<void> call) { call_ = std::move(call); }
  void Add(std::shared_ptr<const v1::GroupResult> chunk);
  void End(const absl::Status& status);
  void OnWriteDone(bool ok);
  void Abandon(const grpc::Status& status);  // the client left, or was given up

 private:
  void Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveUp(uint64_t write);  // unless that write has ended

  grpc::CallbackServerContext* const context_;
  const uint64_t idle_ms_;
  const Hooks hooks_;
  std::weak_ptr<void> call_;
  Mutex mutex_;
  IdleTimer timer_ ABSL_GUARDED_BY(mutex_);  // of the chunk that is being written
  std::deque<std::shared_ptr<const v1::GroupResult>> chunks_ ABSL_GUARDED_BY(mutex_);  // the front one is being written
  uint64_t writes_ ABSL_GUARDED_BY(mutex_) = 0;                                        // that were begun
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace stemma::server
