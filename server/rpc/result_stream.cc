#include "server/rpc/result_stream.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "grpc/grpc.h"
#include "server/rpc/grpc_status.h"

namespace stemma::server {

ResultStream::ResultStream(grpc::CallbackServerContext* context, uint64_t idle_ms, Hooks hooks)
    : context_(context), idle_ms_(idle_ms), hooks_(std::move(hooks)), timer_(absl::Milliseconds(idle_ms)) {}

void ResultStream::Add(std::shared_ptr<const v1::GroupResult> chunk) {
  MutexLock lock(&mutex_);
  if (finished_) return;
  chunks_.push_back(std::move(chunk));
  Next();
}

void ResultStream::End(const absl::Status& status) {
  MutexLock lock(&mutex_);
  end_ = status;
  Next();
}

void ResultStream::OnWriteDone(bool ok) {
  MutexLock lock(&mutex_);
  timer_.Stop();
  writing_ = false;
  chunks_.pop_front();
  if (ok) Next();  // else the client is gone: OnCancel finishes
}

void ResultStream::Abandon(const grpc::Status& status) {
  MutexLock lock(&mutex_);
  if (std::exchange(finished_, true)) return;
  hooks_.finish(status);
}

// A status that is finished with would wait behind the chunk, and the chunk with it. What cancels the call is told to
// the client past the chunk, and without the details that our errors have. Not under the lock: it may call back.
void ResultStream::GiveUp(uint64_t write) {
  grpc_call* call = nullptr;
  {
    MutexLock lock(&mutex_);
    if (finished_ || !writing_ || write != writes_) return;
    call = context_->c_call();  // the context stays until the write has ended, which needs the lock
    grpc_call_ref(call);
  }
  const std::string why = absl::StrCat("no result was read for ", idle_ms_,
                                       " ms (limits.stream_idle_ms): read them as they come, and ask for them again");
  LOG(WARNING) << "a stream of results is ended: " << why;
  grpc_call_cancel_with_status(call, GRPC_STATUS_DEADLINE_EXCEEDED, why.c_str(), /*reserved=*/nullptr);
  grpc_call_unref(call);
}

void ResultStream::Next() {
  if (finished_ || writing_) return;
  if (!chunks_.empty()) {
    writing_ = true;
    timer_.Start([this, call = call_, write = ++writes_] {
      if (const std::shared_ptr<void> alive = call.lock()) GiveUp(write);
    });
    hooks_.write(chunks_.front().get());
  } else if (end_) {
    finished_ = true;
    hooks_.finish(ToGrpcStatus(*end_));
  }
}

}  // namespace stemma::server
