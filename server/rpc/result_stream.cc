#include "server/rpc/result_stream.h"

#include <utility>

#include "server/rpc/grpc_status.h"

namespace stemma::server {

void ResultStream::Add(std::shared_ptr<const v1::GroupResult> chunk) {
  absl::MutexLock lock(&mutex_);
  if (finished_) return;
  chunks_.push_back(std::move(chunk));
  Next();
}

void ResultStream::End(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  end_ = status;
  Next();
}

void ResultStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  chunks_.pop_front();
  if (ok) Next();  // else the client is gone: OnCancel finishes
}

void ResultStream::Abandon(const grpc::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (std::exchange(finished_, true)) return;
  finish_(status);
}

void ResultStream::Next() {
  if (finished_ || writing_) return;
  if (!chunks_.empty()) {
    writing_ = true;
    write_(chunks_.front().get());
  } else if (end_) {
    finished_ = true;
    finish_(ToGrpcStatus(*end_));
  }
}

}  // namespace stemma::server
