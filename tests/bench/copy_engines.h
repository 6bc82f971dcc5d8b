// Copy engines of memory_bench: one that moves nothing, one that notes when each copy ran, and one that passes on to
// whichever of them is in use.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "worker/memory/copy_engine.h"
#include "worker/memory/thread_copy_engine.h"

namespace stemma::testing {

// Says at once that everything is there: what offload costs apart from its copies. What is computed with it is wrong.
class NothingCopyEngine final : public CopyEngine {
 public:
  CopyTicket StartCopyOut(std::vector<CopySpan>) override { return 0; }
  CopyTicket StartCopyIn(std::vector<CopySpan>) override { return 0; }
  absl::StatusOr<bool> Done(CopyTicket) override { return true; }
  absl::Status Wait(CopyTicket) override { return absl::OkStatus(); }
  void Cancel(CopyTicket) override {}
};

// One copy; seconds of RealClock.
struct CopyRecord {
  bool out = false;
  const void* host = nullptr;  // where its block begins: a copy in reads what the copy out of its entry wrote
  double begun_s = 0, ended_s = 0;
};

// Copies as ThreadCopyEngine does, and notes when each began and ended. A copy that is cancelled while it runs goes on
// to its end. Thread safety: safe.
class RecordingCopyEngine final : public CopyEngine {
 public:
  RecordingCopyEngine() : thread_([this] { Run(); }) {}
  ~RecordingCopyEngine() override;

  CopyTicket StartCopyOut(std::vector<CopySpan> spans) override { return Start(true, std::move(spans)); }
  CopyTicket StartCopyIn(std::vector<CopySpan> spans) override { return Start(false, std::move(spans)); }
  absl::StatusOr<bool> Done(CopyTicket ticket) override;
  absl::Status Wait(CopyTicket ticket) override;
  void Cancel(CopyTicket ticket) override;

  // What ended since the last call, in the order in which it ran.
  std::vector<CopyRecord> TakeRecords();

 private:
  struct Job {
    CopyTicket ticket;
    bool out;
    std::vector<CopySpan> spans;
  };

  CopyTicket Start(bool out, std::vector<CopySpan> spans);
  void Run();
  CopyRecord Copy(const Job& job);

  ThreadCopyEngine copies_;
  Mutex mutex_;
  std::deque<Job> queue_ ABSL_GUARDED_BY(mutex_);
  std::set<CopyTicket> done_ ABSL_GUARDED_BY(mutex_);
  std::vector<CopyRecord> records_ ABSL_GUARDED_BY(mutex_);
  CopyTicket next_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Passes on to an engine that may be changed while no copy is in flight.
class ChangingCopyEngine final : public CopyEngine {
 public:
  void Use(CopyEngine& engine) { engine_ = &engine; }

  CopyTicket StartCopyOut(std::vector<CopySpan> spans) override { return engine_->StartCopyOut(std::move(spans)); }
  CopyTicket StartCopyIn(std::vector<CopySpan> spans) override { return engine_->StartCopyIn(std::move(spans)); }
  absl::StatusOr<bool> Done(CopyTicket ticket) override { return engine_->Done(ticket); }
  absl::Status Wait(CopyTicket ticket) override { return engine_->Wait(ticket); }
  void Cancel(CopyTicket ticket) override { engine_->Cancel(ticket); }

 private:
  CopyEngine* engine_ = nullptr;
};

}  // namespace stemma::testing
