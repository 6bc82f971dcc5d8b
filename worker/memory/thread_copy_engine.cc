#include "worker/memory/thread_copy_engine.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/clock.h"

namespace stemma::worker {
namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;  // between two looks at whether the copy is cancelled: about 1 ms

}  // namespace

ThreadCopyEngine::ThreadCopyEngine() : thread_([this] { Run(); }) {}

ThreadCopyEngine::~ThreadCopyEngine() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    queue_.clear();
  }
  thread_.join();
}

void ThreadCopyEngine::Observe(const CopyObserver& observer) {
  MutexLock lock(&mutex_);
  observer_ = observer;
}

CopyTicket ThreadCopyEngine::Start(CopyTimes::Kind kind, std::vector<CopySpan> spans) {
  MutexLock lock(&mutex_);
  queue_.push_back({next_ticket_, kind, std::move(spans)});
  return next_ticket_++;
}

absl::StatusOr<bool> ThreadCopyEngine::Done(CopyTicket ticket) {
  MutexLock lock(&mutex_);
  CheckKnown(ticket);
  return done_.erase(ticket) > 0;
}

absl::Status ThreadCopyEngine::Wait(CopyTicket ticket) {
  MutexLock lock(&mutex_);
  CheckKnown(ticket);
  if (const auto queued = Queued(ticket); queued != queue_.end()) std::rotate(queue_.begin(), queued, queued + 1);
  const double begun_s = observer_ ? RealClock().MonotonicSeconds() : 0;
  mutex_.Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_.erase(ticket) > 0; });
  if (observer_) observer_({CopyTimes::Kind::kWait, ticket, 0, begun_s, RealClock().MonotonicSeconds()});
  return absl::OkStatus();
}

void ThreadCopyEngine::Cancel(CopyTicket ticket) {
  MutexLock lock(&mutex_);
  CheckKnown(ticket);
  if (const auto queued = Queued(ticket); queued != queue_.end()) {
    queue_.erase(queued);
    return;
  }
  if (current_ == ticket) {
    cancel_current_ = true;
    mutex_.Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return current_ != ticket; });
  }
  done_.erase(ticket);
}

void ThreadCopyEngine::CheckKnown(CopyTicket ticket) const {
  const auto is_it = [&](const Job& job) { return job.ticket == ticket; };
  CHECK(current_ == ticket || done_.count(ticket) > 0 || std::any_of(queue_.begin(), queue_.end(), is_it))
      << "copy " << ticket << " was never started, or has ended already";
}

std::deque<ThreadCopyEngine::Job>::iterator ThreadCopyEngine::Queued(CopyTicket ticket) {
  return std::find_if(queue_.begin(), queue_.end(), [&](const Job& job) { return job.ticket == ticket; });
}

void ThreadCopyEngine::Run() {
  mutex_.Lock();
  while (true) {
    mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) break;
    const Job job = std::move(queue_.front());
    queue_.pop_front();
    current_ = job.ticket;
    cancel_current_ = false;
    const CopyObserver observer = observer_;
    mutex_.Unlock();
    CopyObserved(job, observer);
    mutex_.Lock();
    current_ = kNone;
    done_.insert(job.ticket);
  }
  mutex_.Unlock();
}

void ThreadCopyEngine::Copy(const Job& job) {
  for (const CopySpan& span : job.spans) {
    for (int64_t begin = 0; begin < span.bytes; begin += kPieceBytes) {
      if (CurrentIsCancelled()) return;
      std::memcpy(static_cast<char*>(span.to) + begin, static_cast<const char*>(span.from) + begin,
                  static_cast<size_t>(std::min(kPieceBytes, span.bytes - begin)));
    }
  }
}

void ThreadCopyEngine::CopyObserved(const Job& job, const CopyObserver& observer) {
  if (!observer) return Copy(job);
  const double begun_s = RealClock().MonotonicSeconds();
  Copy(job);
  int64_t bytes = 0;
  for (const CopySpan& span : job.spans) bytes += span.bytes;
  observer({job.kind, job.ticket, bytes, begun_s, RealClock().MonotonicSeconds()});
}

bool ThreadCopyEngine::CurrentIsCancelled() {
  MutexLock lock(&mutex_);
  return cancel_current_ || stopping_;
}

}  // namespace stemma::worker
