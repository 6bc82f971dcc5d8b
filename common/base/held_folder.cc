#include "common/base/held_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/file.h"

namespace stemma {

absl::StatusOr<HeldFolder> HeldFolder::Open(std::string path) {
  UniqueFd fd(open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus("open", path, errno);
  return HeldFolder(std::move(path), std::move(fd));
}

absl::Status HeldFolder::Check() const {
  struct stat there, held;
  if (stat(path_.c_str(), &there) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) return absl::OkStatus();
    return MakeError(Reason::kInternal, absl::StrCat(path_,
                                                     " is not there any more: put it back as it was, or mount its "
                                                     "disk"));
  }
  const bool is_there = fstat(fd_.get(), &held) == 0;  // else a server of files has removed it
  if (is_there && there.st_dev == held.st_dev && there.st_ino == held.st_ino) return absl::OkStatus();
  return MakeError(Reason::kInternal,
                   absl::StrCat(path_,
                                " is another folder than the one that was opened: it was moved, or something was "
                                "mounted or unmounted there; stop this process, put its own back, and start it "
                                "again"));
}

}  // namespace stemma
