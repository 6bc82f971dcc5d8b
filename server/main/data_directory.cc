#include "server/main/data_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/base/temporary_folder.h"
#include "common/base/utf8.h"

namespace stemma::server {
namespace {

namespace fs = std::filesystem;

constexpr char kLockName[] = ".lock";
constexpr mode_t kLockMode = 0600;  // whoever may read it could hold it, and keep the next server out
constexpr size_t kHolderBytesMax = 256;
constexpr int kHolderLooksMax = 100;
constexpr absl::Duration kHolderLookEvery = absl::Milliseconds(20);
constexpr size_t kPathBytesMax = 448;  // SQLite opens no file whose path has more than 512, its journal's name included

std::string ErrorText(int error) { return std::strerror(error); }

std::string HolderText(int fd) {
  std::string text(kHolderBytesMax, '\0');
  const ssize_t count = pread(fd, text.data(), text.size(), 0);
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// Returns "pid 12 at 127.0.0.1:7070", as the lock's holder wrote it. One that has only just taken it is given the time
// to say who it is.
std::string HolderOf(int fd) {
  std::string text = HolderText(fd);
  for (int looks = 1; text.empty() && looks < kHolderLooksMax; ++looks) {
    RealClock().Sleep(kHolderLookEvery);
    text = HolderText(fd);
  }
  return text.empty() ? "another server" : absl::StrCat("stemma-server ", text);
}

absl::Status WriteHolder(int fd, const std::string& text) {
  if (ftruncate(fd, 0) != 0 || pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
      fsync(fd) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot be written: ", ErrorText(errno)));
  }
  return absl::OkStatus();
}

// Returns the absolute path. The system follows a link before it goes up from it, so `..` is not cut off by the letter.
fs::path Named(const std::string& path, std::error_code& error) {
  const fs::path absolute = fs::absolute(path, error);
  const bool goes_up = std::find(absolute.begin(), absolute.end(), "..") != absolute.end();
  return goes_up && !error ? fs::weakly_canonical(absolute, error) : absolute.lexically_normal();
}

}  // namespace

absl::StatusOr<DataDirectory> DataDirectory::Open(const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError("is empty: name a directory");
  std::error_code error;
  const fs::path data = Named(path, error);
  if (!error && data.string().size() > kPathBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("has ", data.string().size(),
                                                   " bytes as an absolute path, the limit is ", kPathBytesMax,
                                                   ": choose a shorter one"));
  }
  if (!error && !IsUtf8(data.string())) {
    return absl::InvalidArgumentError(
        "has bytes that are not UTF-8, which cannot be told to workers: choose another name");
  }
  const int made = error ? error.value() : MakeFolders(data.string());
  if (made != 0) return absl::InvalidArgumentError(absl::StrCat("cannot be created: ", ErrorText(made)));
  if (!fs::is_directory(data, error)) return absl::InvalidArgumentError("is not a directory");
  UniqueFd fd(open((data / kLockName).c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, kLockMode));
  if (!fd.valid()) return absl::InvalidArgumentError(absl::StrCat("cannot be written: ", ErrorText(errno)));
  fchmod(fd.get(), kLockMode);  // one that an earlier build made; it is another user's where that fails
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return absl::InvalidArgumentError(absl::StrCat("cannot be locked: ", ErrorText(errno)));
    return absl::InvalidArgumentError(
        absl::StrCat("is in use by ", HolderOf(fd.get()), ": each server needs a data directory of its own"));
  }
  RETURN_IF_ERROR(WriteHolder(fd.get(), absl::StrCat("pid ", getpid(), "\n")));
  return DataDirectory(data.string(), std::move(fd));
}

absl::Status DataDirectory::SetAddress(const std::string& address) {
  return WriteHolder(fd_.get(), absl::StrCat("pid ", getpid(), " at ", address, "\n"));
}

}  // namespace stemma::server
