// The copy engine of a CPU: one thread that copies with memcpy, tickets in order but for one that is waited for.
//
// Thread safety: safe. Invariant: a ticket is in exactly one of queue_, current_ and done_, or it has ended.
#pragma once

#include <cstdint>
#include <deque>
#include <thread>
#include <unordered_set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "worker/memory/copy_engine.h"

namespace stemma::worker {

class ThreadCopyEngine final : public CopyEngine {
 public:
  ThreadCopyEngine();
  // Drops what has not begun; CHECKs nothing: whoever holds a ticket must have ended it.
  ~ThreadCopyEngine() override;

  CopyTicket StartCopyOut(std::vector<CopySpan> spans) override {
    return Start(CopyTimes::Kind::kOut, std::move(spans));
  }
  CopyTicket StartCopyIn(std::vector<CopySpan> spans) override { return Start(CopyTimes::Kind::kIn, std::move(spans)); }
  absl::StatusOr<bool> Done(CopyTicket ticket) override;
  absl::Status Wait(CopyTicket ticket) override;
  void Cancel(CopyTicket ticket) override;
  void Observe(const CopyObserver& observer) override;

 private:
  static constexpr CopyTicket kNone = -1;
  struct Job {
    CopyTicket ticket;
    CopyTimes::Kind kind;
    std::vector<CopySpan> spans;
  };

  CopyTicket Start(CopyTimes::Kind kind, std::vector<CopySpan> spans);
  void CheckKnown(CopyTicket ticket) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::deque<Job>::iterator Queued(CopyTicket ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();
  void Copy(const Job& job);
  void CopyObserved(const Job& job, const CopyObserver& observer);
  bool CurrentIsCancelled();

  Mutex mutex_;
  CopyObserver observer_ ABSL_GUARDED_BY(mutex_);
  std::deque<Job> queue_ ABSL_GUARDED_BY(mutex_);
  std::unordered_set<CopyTicket> done_ ABSL_GUARDED_BY(mutex_);
  CopyTicket next_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  CopyTicket current_ ABSL_GUARDED_BY(mutex_) = kNone;  // being copied
  bool cancel_current_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace stemma::worker
