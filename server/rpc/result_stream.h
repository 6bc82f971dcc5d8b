// The GroupResults of a streaming call, written one at a time, then its status.
//
// Thread safety: safe. Finishes exactly once: after the last chunk, or at once by Abandon.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/status.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

class ResultStream {
 public:
  // The reactor's StartWrite and Finish.
  ResultStream(std::function<void(const v1::GroupResult*)> write, std::function<void(const grpc::Status&)> finish)
      : write_(std::move(write)), finish_(std::move(finish)) {}

  void Add(std::shared_ptr<const v1::GroupResult> chunk);
  void End(const absl::Status& status);
  void OnWriteDone(bool ok);
  void Abandon(const grpc::Status& status);  // the client left

 private:
  void Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<void(const v1::GroupResult*)> write_;
  const std::function<void(const grpc::Status&)> finish_;
  absl::Mutex mutex_;
  std::deque<std::shared_ptr<const v1::GroupResult>> chunks_ ABSL_GUARDED_BY(mutex_);  // the front one is being written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace stemma::server
