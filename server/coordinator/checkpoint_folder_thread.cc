#include "server/coordinator/checkpoint_folder_thread.h"

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "server/coordinator/unfinished_files.h"
#include "server/protocol/checkpoint_rules.h"
#include "server/store/folder.h"

namespace stemma::server {
namespace {

std::string TextOfFolderWork(const CheckpointFolderThread::Work& work) {
  if (const auto* make = std::get_if<MakeCheckpointFolderAction>(&work)) {
    return absl::StrCat("making folder ", TemporaryFolderOf(make->name));
  }
  if (const auto* remove = std::get_if<RemoveCheckpointAction>(&work)) {
    return absl::StrCat("removing checkpoint ", remove->name);
  }
  if (const auto* remove = std::get_if<RemoveExportWork>(&work)) return absl::StrCat("removing export ", remove->name);
  if (const auto* drop = std::get_if<DropSaveAction>(&work)) return absl::StrCat("removing folder ", drop->folder);
  return absl::StrCat("removing ", std::get<RemovePathWork>(work).path);
}

bool RemovesFiles(const CheckpointFolderThread::Work& work) {
  return std::holds_alternative<DropSaveAction>(work) || std::holds_alternative<RemovePathWork>(work);
}

}  // namespace

CheckpointFolderThread::CheckpointFolderThread(const CheckpointStore* store, std::function<void(Event)> done)
    : store_(store), done_(std::move(done)), thread_("", [this] { Run(); }) {}

void CheckpointFolderThread::Add(Work work) {
  MutexLock lock(&mutex_);
  (RemovesFiles(work) ? files_ : works_).push_back(std::move(work));
}

void CheckpointFolderThread::Quit() {
  MutexLock lock(&mutex_);
  stopped_ = true;
}

std::string CheckpointFolderThread::StopBy(StopDeadline deadline) {
  Quit();
  return thread_.EndBy(deadline);
}

bool CheckpointFolderThread::Next(Work& work) {
  MutexLock lock(&mutex_);
  mutex_.Await([this]()
                   ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || !works_.empty() || !files_.empty(); });
  if (stopped_ && works_.empty()) return false;
  std::deque<Work>& next = works_.empty() ? files_ : works_;
  work = std::move(next.front());
  next.pop_front();
  thread_.Doing(TextOfFolderWork(work));
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
  if (retired.ok()) Add(DropSaveAction{*retired});
  done_(CheckpointRemovedEvent{.name = action.name, .removed = retired.status()});
}

void CheckpointFolderThread::Do(const RemoveExportWork& work) {
  const absl::StatusOr<std::string> retired = RetireFolder(work.folder, work.name);
  if (retired.ok()) Add(RemovePathWork{absl::StrCat(work.folder, "/", *retired)});
  done_(ExportRemovedEvent{.call = work.call, .name = work.name, .removed = retired.status()});
}

void CheckpointFolderThread::Do(const RemovePathWork& work) { RemoveUnfinishedPath(work.path); }

}  // namespace stemma::server
