#include "server/coordinator/checkpoint_thread.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"

namespace stemma::server {
namespace {

std::string TextOfWork(const CheckpointThread::Work& work) {
  const auto* commit = std::get_if<CommitCheckpointAction>(&work);
  if (commit != nullptr) return absl::StrCat("saving checkpoint ", commit->manifest.name());
  return absl::StrCat("reading checkpoint ", std::get<ReadCheckpointAction>(work).name);
}

}  // namespace

CheckpointThread::CheckpointThread(const CheckpointStore* store, ModelConfig model, std::function<void(Event)> done)
    : store_(store), model_(std::move(model)), done_(std::move(done)), thread_("", [this] { Run(); }) {}

void CheckpointThread::Add(Work work) {
  MutexLock lock(&mutex_);
  const auto* reading = std::get_if<ReadCheckpointAction>(&work);
  (reading != nullptr && !reading->for_recovery ? client_readings_ : works_).push_back(std::move(work));
}

void CheckpointThread::Drop(const DropReadingAction& action) {
  {
    MutexLock lock(&mutex_);
    const auto is_it = [&](const Work& work) { return std::get<ReadCheckpointAction>(work).id == action.id; };
    if (std::erase_if(client_readings_, is_it) == 0) return;
  }
  done_(CheckpointReadEvent{.id = action.id, .client_state = absl::CancelledError("nobody waits for it any more")});
}

void CheckpointThread::Quit() {
  MutexLock lock(&mutex_);
  stopped_ = true;
}

std::string CheckpointThread::StopBy(StopDeadline deadline) {
  Quit();
  return thread_.EndBy(deadline);
}

bool CheckpointThread::Next(Work& work) {
  MutexLock lock(&mutex_);
  mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopped_ || !works_.empty() || !client_readings_.empty();
  });
  if (stopped_) return false;
  std::deque<Work>& next = works_.empty() ? client_readings_ : works_;
  work = std::move(next.front());
  next.pop_front();
  thread_.Doing(TextOfWork(work));
  return true;
}

void CheckpointThread::Run() {
  Work work;
  while (Next(work)) std::visit([this](const auto& w) { Do(w); }, work);
}

bool CheckpointThread::GoesOn(uint64_t bytes) {
  unsaid_bytes_ += bytes;
  if (unsaid_bytes_ >= kCheckpointProgressBytes) {
    unsaid_bytes_ = 0;
    done_(CheckpointProgressEvent{});
  }
  return !stopped_;
}

void CheckpointThread::Do(const CommitCheckpointAction& action) {
  const absl::StatusOr<StoredCheckpoint> stored =
      store_->Commit(action.folder, action.manifest, action.client_state, [this](uint64_t b) { return GoesOn(b); });
  if (!stored.ok()) return done_(CheckpointWrittenEvent{.id = action.id, .written = stored.status()});
  done_(CheckpointWrittenEvent{.id = action.id, .written = KnownOf(*stored)});
}

void CheckpointThread::Do(const ReadCheckpointAction& action) {
  Failpoint("ckpt.before_read", /*rank=*/0);
  absl::StatusOr<StoredCheckpoint> stored =
      store_->Verify(action.name, action.manifest_sha256, [this](uint64_t b) { return GoesOn(b); });
  absl::Status read = stored.status();
  if (read.ok()) read = store_->CheckModel(action.name, model_);
  if (!read.ok()) return done_(CheckpointReadEvent{.id = action.id, .client_state = read});
  done_(CheckpointReadEvent{.id = action.id, .client_state = std::move(stored->client_state)});
}

}  // namespace stemma::server
