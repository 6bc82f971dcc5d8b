#include "server/coordinator/checkpoint_folder_thread.h"

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "server/protocol/checkpoint_rules.h"

namespace stemma::server {
namespace {

std::string TextOfFolderWork(const CheckpointFolderThread::Work& work) {
  if (const auto* make = std::get_if<MakeCheckpointFolderAction>(&work)) {
    return absl::StrCat("making folder ", TemporaryFolderOf(make->name));
  }
  if (const auto* remove = std::get_if<RemoveCheckpointAction>(&work)) {
    return absl::StrCat("removing checkpoint ", remove->name);
  }
  return absl::StrCat("removing folder ", std::get<DropSaveAction>(work).folder);
}

}  // namespace

CheckpointFolderThread::CheckpointFolderThread(const CheckpointStore* store, std::function<void(Event)> done)
    : store_(store), done_(std::move(done)), thread_([this] { Run(); }) {}

void CheckpointFolderThread::Add(Work work) {
  MutexLock lock(&mutex_);
  if (auto* drop = std::get_if<DropSaveAction>(&work)) return files_.push_back(std::move(*drop));
  works_.push_back(std::move(work));
}

std::string CheckpointFolderThread::StopWithin(absl::Duration within) {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_; };
    if (!mutex_.AwaitWithTimeout(ended, within)) return doing_;
  }
  if (thread_.joinable()) thread_.join();
  return "";
}

bool CheckpointFolderThread::Next(Work& work) {
  MutexLock lock(&mutex_);
  mutex_.Await([this]()
                   ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || !works_.empty() || !files_.empty(); });
  if (!works_.empty()) {
    work = std::move(works_.front());
    works_.pop_front();
    doing_ = TextOfFolderWork(work);
    return true;
  }
  if (stopped_) return false;
  work = std::move(files_.front());
  files_.pop_front();
  doing_ = TextOfFolderWork(work);
  return true;
}

void CheckpointFolderThread::Run() {
  Work work;
  while (Next(work)) std::visit([this](const auto& w) { Do(w); }, work);
  MutexLock lock(&mutex_);
  ended_ = true;
}

void CheckpointFolderThread::Do(const MakeCheckpointFolderAction& action) {
  const absl::StatusOr<std::string> made = store_->Begin(action.name);
  if (made.ok()) CHECK_EQ(*made, TemporaryFolderOf(action.name));
  done_(CheckpointFolderEvent{.id = action.id, .made = made.status()});
}

void CheckpointFolderThread::Do(const RemoveCheckpointAction& action) {
  const absl::StatusOr<std::string> retired = store_->Retire(action.name);
  if (retired.ok()) Add(DropSaveAction{*retired});
  done_(CheckpointRemovedEvent{.name = action.name, .removed = retired.status()});
}

}  // namespace stemma::server
