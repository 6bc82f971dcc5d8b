#include "server/store/spool.h"

#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "common/base/temporary_file.h"
#include "glog/logging.h"
#include "server/store/folder.h"

namespace stemma::server {
namespace {

constexpr mode_t kMode = 0600;  // a file holds what clients sent

absl::Status RemoveFile(const std::string& path) {
  return unlink(path.c_str()) == 0 || errno == ENOENT ? absl::OkStatus() : ErrnoStatus("remove", path, errno);
}

}  // namespace

absl::StatusOr<Spool> Spool::Open(const std::string& directory, uint64_t message_bytes_max) {
  CHECK_LE(message_bytes_max, kSpoolMessageBytesMax);
  ASSIGN_OR_RETURN(const std::string root, ResolvePath(directory));
  const std::string folder = absl::StrCat(root, "/spool");
  RETURN_IF_ERROR(MakePrivateFolder(folder));
  // By the name that was given: a link in it may lead elsewhere later.
  ASSIGN_OR_RETURN(HeldFolder held, HeldFolder::Open(absl::StrCat(directory, "/spool")));
  Spool spool(folder, std::move(held), message_bytes_max);
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(spool.folder_));
  for (const std::string& name : names) {
    if (!CheckFileName(TargetOfTemporary(name)).ok()) continue;
    LogUnfinished(absl::StrCat(spool.folder_, "/", name), RemoveFile(absl::StrCat(spool.folder_, "/", name)));
  }
  return spool;
}

absl::StatusOr<std::string> Spool::PathOf(const std::string& name) const {
  RETURN_IF_ERROR(CheckFileName(name));
  RETURN_IF_ERROR(held_.Check());
  return absl::StrCat(folder_, "/", name);
}

absl::StatusOr<internal::v1::SpoolFile> Spool::Write(const std::string& name, const TrainingRequest& request,
                                                     const RequestPlan& plan, const v1::Mesh& mesh) const {
  ASSIGN_OR_RETURN(const std::string path, PathOf(name));
  ASSIGN_OR_RETURN(TemporaryFile temporary, TemporaryFile::Create(path, kMode));
  ASSIGN_OR_RETURN(internal::v1::SpoolFile file,
                   WriteSpooled(temporary.fd(), path, request, plan, mesh, message_bytes_max_));
  RETURN_IF_ERROR(temporary.Commit());
  if (absl::Status synced = SyncFolder(folder_); !synced.ok()) {
    unlink(path.c_str());
    return synced;
  }
  file.set_name(name);
  return file;
}

absl::StatusOr<SpooledRequest> Spool::Read(const internal::v1::SpoolFile& file) const {
  ASSIGN_OR_RETURN(const std::string path, PathOf(file.name()));
  const absl::StatusOr<RegularFile> opened = RegularFile::Open(path);
  if (absl::IsNotFound(opened.status()) || absl::IsInvalidArgument(opened.status())) {
    return MakeError(Reason::kCorruptSpool,
                     absl::StrCat(std::string(opened.status().message()),
                                  "; restore the file from a backup, or go on from a later checkpoint"));
  }
  RETURN_IF_ERROR(opened.status());
  return ReadSpooled(*opened, path, file, message_bytes_max_);
}

absl::StatusOr<bool> Spool::IsOfAnotherVersion(const std::string& name) const {
  ASSIGN_OR_RETURN(const std::string path, PathOf(name));
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (absl::IsPermissionDenied(file.status())) {
    return WithMessage(file.status(), absl::StrCat(std::string(file.status().message()),
                                                   "; give the file, and all of --data, to the user of the server"));
  }
  const std::string magic = file.ok() ? SpoolMagicOf(*file) : "";
  return !magic.empty() && magic != kSpoolMagic;
}

absl::Status Spool::Remove(const std::string& name) const {
  ASSIGN_OR_RETURN(const std::string path, PathOf(name));
  return RemoveFile(path);
}

absl::StatusOr<std::vector<std::string>> Spool::Names() const {
  ASSIGN_OR_RETURN(std::vector<std::string> names, NamesIn(folder_));
  std::erase_if(names, [this](const std::string& name) {
    if (!CheckFileName(name).ok()) return true;
    const absl::StatusOr<RegularFile> file = RegularFile::Open(absl::StrCat(folder_, "/", name));
    return !file.ok() || SpoolMagicOf(*file).empty();
  });
  return names;
}

absl::StatusOr<std::vector<std::string>> Spool::Sweep(const std::set<std::string>& keep) const {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, Names());
  std::vector<std::string> removed;
  for (const std::string& name : names) {
    if (keep.contains(name)) continue;
    const absl::Status gone = RemoveFile(absl::StrCat(folder_, "/", name));
    LOG_IF(WARNING, !gone.ok()) << "a spooled request that nobody needs stays: " << gone.message();
    if (gone.ok()) removed.push_back(name);
  }
  return removed;
}

}  // namespace stemma::server
