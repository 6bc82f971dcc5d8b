#include "worker/checkpoint/part_writer.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"

namespace stemma::worker {
namespace {

// The journal lies beside the checkpoints, and a row that finds no room ends the server: twice what the server keeps
// for its rows (server/coordinator/storage.cc).
constexpr uint64_t kLeftFreeBytes = 64 << 20;

}  // namespace

absl::StatusOr<PartWriter> PartWriter::Open(const std::string& folder, const std::string& name, uint32_t rank) {
  const std::string path = absl::StrCat(folder, "/", name);
  // O_NONBLOCK: a fifo must not hold us.
  const int fd = open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (fd < 0) return ErrnoStatus("create", path, errno);
  PartWriter writer(path, fd);
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus("stat", path, errno);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  writer.part_.set_file(name);
  writer.part_.set_rank(rank);
  return writer;
}

PartWriter::PartWriter(PartWriter&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      end_(other.end_),
      digest_(std::move(other.digest_)),
      part_(std::move(other.part_)) {}

PartWriter::~PartWriter() {
  if (fd_ >= 0) close(fd_);
}

absl::Status PartWriter::Write(uint64_t offset, std::string_view bytes) {
  CHECK_GE(offset, end_) << path_ << ": ranges ascend";
  if (bytes.empty()) return absl::OkStatus();
  digest_.Update(bytes);
  if (part_.ranges_size() > 0 && offset == end_) {
    internal::v1::ByteRange& last = *part_.mutable_ranges(part_.ranges_size() - 1);
    last.set_bytes(last.bytes() + bytes.size());
  } else {
    internal::v1::ByteRange& range = *part_.add_ranges();
    range.set_begin(offset);
    range.set_bytes(bytes.size());
  }
  end_ = offset + bytes.size();
  struct statvfs disk;
  if (fstatvfs(fd_, &disk) == 0 && uint64_t{disk.f_bavail} * disk.f_frsize < kLeftFreeBytes + bytes.size()) {
    return ErrnoStatus("keep room for the journal beside", path_, ENOSPC);
  }
  while (!bytes.empty()) {
    const ssize_t count = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus("write", path_, errno);
    bytes.remove_prefix(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return absl::OkStatus();
}

absl::StatusOr<internal::v1::CheckpointPart> PartWriter::Close() {
  if (fsync(fd_) != 0) return ErrnoStatus("fsync", path_, errno);
  const int fd = std::exchange(fd_, -1);
  if (close(fd) != 0) return ErrnoStatus("close", path_, errno);
  part_.set_sha256(digest_.FinishHex());
  return part_;
}

}  // namespace stemma::worker
