#include "server/coordinator/checkpoint_folder_thread.h"

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "glog/logging.h"
#include "server/protocol/checkpoint_rules.h"

namespace stemma::server {

CheckpointFolderThread::CheckpointFolderThread(const CheckpointStore* store, CheckpointThread* files,
                                               std::function<void(Event)> done)
    : store_(store), files_(files), done_(std::move(done)), thread_([this] { Run(); }) {}

void CheckpointFolderThread::Add(Work work) {
  MutexLock lock(&mutex_);
  works_.push_back(std::move(work));
}

void CheckpointFolderThread::Stop() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

bool CheckpointFolderThread::Next(Work& work) {
  MutexLock lock(&mutex_);
  mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || !works_.empty(); });
  if (works_.empty()) return false;
  work = std::move(works_.front());
  works_.pop_front();
  return true;
}

void CheckpointFolderThread::Run() {
  Work work;
  while (Next(work)) std::visit([this](const auto& w) { Do(w); }, work);
}

void CheckpointFolderThread::Do(const MakeCheckpointFolderAction& action) {
  const absl::StatusOr<std::string> made = store_->Begin(action.name);
  if (made.ok()) CHECK_EQ(*made, TemporaryFolderOf(action.name));
  done_(CheckpointFolderEvent{.id = action.id, .made = made.status()});
}

void CheckpointFolderThread::Do(const RemoveCheckpointAction& action) {
  const absl::StatusOr<std::string> retired = store_->Retire(action.name);
  if (retired.ok()) files_->Add(AbandonedFolder{*retired});
  done_(CheckpointRemovedEvent{.name = action.name, .removed = retired.status()});
}

}  // namespace stemma::server
