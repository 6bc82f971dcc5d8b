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
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  const bool created = fd.valid();
  if (!created && errno == EEXIST) fd.Reset(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus("write", path, errno);
  return ReportFile(path, std::move(fd), created);
}

ReportFile::~ReportFile() {
  if (fd_.valid() && created_ && !written_) unlink(path_.c_str());
}

absl::Status ReportFile::Write(std::string_view content) {
  written_ = true;
  struct stat info;
  const bool regular = fstat(fd_.get(), &info) == 0 && S_ISREG(info.st_mode);
  if (regular && ftruncate(fd_.get(), 0) != 0) return ErrnoStatus("truncate", path_, errno);
  RETURN_IF_ERROR(WriteAll(fd_.get(), content, path_));
  if (regular && fsync(fd_.get()) != 0) return ErrnoStatus("fsync", path_, errno);
  return absl::OkStatus();
}

}  // namespace stemma::cli
