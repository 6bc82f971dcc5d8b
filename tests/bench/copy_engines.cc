#include "tests/bench/copy_engines.h"

#include <algorithm>

#include "common/clock.h"
#include "glog/logging.h"

namespace stemma::testing {

RecordingCopyEngine::~RecordingCopyEngine() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    queue_.clear();
  }
  thread_.join();
}

CopyTicket RecordingCopyEngine::Start(bool out, std::vector<CopySpan> spans) {
  MutexLock lock(&mutex_);
  queue_.push_back({next_ticket_, out, std::move(spans)});
  return next_ticket_++;
}

absl::StatusOr<bool> RecordingCopyEngine::Done(CopyTicket ticket) {
  MutexLock lock(&mutex_);
  return done_.erase(ticket) > 0;
}

absl::Status RecordingCopyEngine::Wait(CopyTicket ticket) {
  MutexLock lock(&mutex_);
  const auto queued = std::find_if(queue_.begin(), queue_.end(), [&](const Job& job) { return job.ticket == ticket; });
  if (queued != queue_.end()) std::rotate(queue_.begin(), queued, queued + 1);
  mutex_.Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_.erase(ticket) > 0; });
  return absl::OkStatus();
}

void RecordingCopyEngine::Cancel(CopyTicket ticket) {
  MutexLock lock(&mutex_);
  const auto queued = std::find_if(queue_.begin(), queue_.end(), [&](const Job& job) { return job.ticket == ticket; });
  if (queued != queue_.end()) {
    queue_.erase(queued);
    return;
  }
  mutex_.Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_.erase(ticket) > 0; });
}

std::vector<CopyRecord> RecordingCopyEngine::TakeRecords() {
  MutexLock lock(&mutex_);
  return std::exchange(records_, {});
}

void RecordingCopyEngine::Run() {
  mutex_.Lock();
  while (true) {
    mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) break;
    const Job job = std::move(queue_.front());
    queue_.pop_front();
    mutex_.Unlock();
    const CopyRecord record = Copy(job);
    mutex_.Lock();
    records_.push_back(record);
    done_.insert(job.ticket);
  }
  mutex_.Unlock();
}

CopyRecord RecordingCopyEngine::Copy(const Job& job) {
  CHECK(!job.spans.empty());
  CopyRecord record{job.out, job.out ? job.spans[0].to : job.spans[0].from, RealClock().MonotonicSeconds(), 0};
  const CopyTicket ticket = job.out ? copies_.StartCopyOut(job.spans) : copies_.StartCopyIn(job.spans);
  CHECK(copies_.Wait(ticket).ok());
  record.ended_s = RealClock().MonotonicSeconds();
  return record;
}

}  // namespace stemma::testing
