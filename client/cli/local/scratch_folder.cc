#include "client/cli/local/scratch_folder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cli/output/command_status.h"
#include "common/base/clock.h"

namespace stemma::cli {
namespace {

namespace fs = std::filesystem;

// A younger one may be of a run that has not locked it yet.
constexpr absl::Duration kOld = absl::Minutes(1);

bool IsOldAndOurs(int folder) {
  struct stat info;
  return fstat(folder, &info) == 0 && info.st_uid == geteuid() && (info.st_mode & (S_IRWXG | S_IRWXO)) == 0 &&
         absl::TimeFromTimespec(info.st_mtim) < RealClock().Now() - kOld;
}

UniqueFd OpenFolder(const std::string& path) {
  return UniqueFd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

bool Lock(const UniqueFd& folder) { return flock(folder.get(), LOCK_EX | LOCK_NB) == 0; }

}  // namespace

absl::StatusOr<std::string> MakeScratchFolder(const std::string& root, const std::string& prefix) {
  std::string path = absl::StrCat(root, "/", prefix, "XXXXXX");
  if (mkdtemp(path.data()) != nullptr) return path;
  return UsageError(absl::StrCat("cannot create a folder in ", root, ": ", strerror(errno),
                                 "; set TMPDIR to a directory that can be written"));
}

UniqueFd LockScratchFolder(const std::string& path) {
  UniqueFd folder = OpenFolder(path);
  if (folder.valid() && !Lock(folder)) folder.Reset();
  return folder;
}

void SweepScratchFolders(const std::string& root) {
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    if (!it->path().filename().string().starts_with(kScratchPrefix)) continue;
    const UniqueFd folder = OpenFolder(path);
    if (!folder.valid() || !IsOldAndOurs(folder.get()) || !Lock(folder)) continue;
    std::error_code ignored;  // what cannot be removed is tried again by the next run
    fs::remove_all(path, ignored);
  }
}

}  // namespace stemma::cli
