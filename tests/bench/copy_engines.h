// Copy engines of memory_bench: one that moves nothing, one that notes when each copy ran, and one that passes on to
// whichever of them is in use.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "tests/testing/namespaces.h"
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

// A ThreadCopyEngine that notes when each copy began and ended. Thread safety: safe.
class RecordingCopyEngine final : public CopyEngine {
 public:
  RecordingCopyEngine();
  CopyTicket StartCopyOut(std::vector<CopySpan> spans) override;
  CopyTicket StartCopyIn(std::vector<CopySpan> spans) override;
  absl::StatusOr<bool> Done(CopyTicket ticket) override { return copies_.Done(ticket); }
  absl::Status Wait(CopyTicket ticket) override { return copies_.Wait(ticket); }
  void Cancel(CopyTicket ticket) override { copies_.Cancel(ticket); }

  // Returns the copies that ended since the last call, in the order in which they ran.
  std::vector<CopyRecord> TakeRecords();

 private:
  CopyTicket NoteStart(CopyTicket ticket, bool out, const void* host);
  void NoteTimes(const CopyTimes& times);

  Mutex mutex_;
  std::map<CopyTicket, CopyRecord> records_ ABSL_GUARDED_BY(mutex_);  // of copies that were not taken
  std::vector<CopyTicket> ended_ ABSL_GUARDED_BY(mutex_);
  ThreadCopyEngine copies_;  // its thread uses the above
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
