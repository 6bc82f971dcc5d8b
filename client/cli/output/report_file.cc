#include "client/cli/output/report_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/base/file.h"
#include "common/base/status_macros.h"

namespace stemma::cli {

absl::StatusOr<ReportFile> ReportFile::Open(const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError("the path is empty: name a file");
  int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  const bool created = fd >= 0;
  if (!created && errno == EEXIST) fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus("write", path, errno);
  return ReportFile(path, fd, created);
}

ReportFile::ReportFile(ReportFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      created_(other.created_),
      written_(other.written_) {}

ReportFile::~ReportFile() {
  if (fd_ < 0) return;
  if (created_ && !written_) unlink(path_.c_str());
  close(fd_);
}

absl::Status ReportFile::Write(std::string_view content) {
  written_ = true;
  struct stat info;
  const bool regular = fstat(fd_, &info) == 0 && S_ISREG(info.st_mode);
  if (regular && ftruncate(fd_, 0) != 0) return ErrnoStatus("truncate", path_, errno);
  RETURN_IF_ERROR(WriteAll(fd_, content, path_));
  if (regular && fsync(fd_) != 0) return ErrnoStatus("fsync", path_, errno);
  return absl::OkStatus();
}

}  // namespace stemma::cli
