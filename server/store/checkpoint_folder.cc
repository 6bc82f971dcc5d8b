#include "server/store/checkpoint_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace stemma::server {
namespace {

constexpr uint64_t kReadBytes = 4u << 20;
constexpr int kFolderFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

// Errors: NotFound; InvalidArgument - what is there is a link, or no folder.
absl::StatusOr<UniqueFd> OpenFolderAt(int fd, const std::string& name, const std::string& path) {
  UniqueFd opened(openat(fd, name.c_str(), kFolderFlags));
  if (opened.valid()) return opened;
  // O_DIRECTORY with O_NOFOLLOW answers ENOTDIR for a link, which ErrnoStatus takes for a missing one.
  if (errno == ENOTDIR) return absl::InvalidArgumentError(absl::StrCat(path, ": is a link, or not a directory"));
  return ErrnoStatus("open", path, errno);
}

absl::Status SyncFd(int fd, const std::string& path) {
  return fsync(fd) == 0 ? absl::OkStatus() : ErrnoStatus("fsync", path, errno);
}

// Compares the contents of one file with its parts' digests.
class FileCheck {
 public:
  FileCheck(const std::string& path, const CheckpointParts& parts, const GoesOn& goes_on)
      : path_(path), parts_(parts), goes_on_(goes_on) {}

  absl::Status Run(const std::string& name, const FileOfParts& contents, const RegularFile& file, std::string& buffer) {
    for (const int part : contents.parts) digests_.try_emplace(part);
    // Writing back left the pages in memory, where a device's error does not show: they are dropped, so that reading
    // asks the device. It is advice: the kernel keeps pages that are in use, and the device has a cache too.
    posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
    posix_fadvise(file.fd(), 0, 0, POSIX_FADV_SEQUENTIAL);
    PieceOrder order(contents.ranges);
    FilePiece piece;  // that holds the bytes at `offset`, once it has been taken
    for (uint64_t offset = 0; offset < contents.bytes;) {
      const uint64_t bytes = std::min<uint64_t>(kReadBytes, contents.bytes - offset);
      if (!goes_on_(bytes)) return absl::CancelledError(absl::StrCat(path_, ": the reading was stopped"));
      if (const absl::Status read = file.ReadAt(offset, buffer.data(), bytes); !read.ok()) {
        return CorruptCheckpoint(path_, absl::StrCat(name, ": ", std::string(read.message())));
      }
      for (std::string_view rest(buffer.data(), bytes); !rest.empty();) {
        if (offset == piece.begin + piece.bytes) piece = order.Take();
        const uint64_t taken = std::min<uint64_t>(rest.size(), piece.begin + piece.bytes - offset);
        digests_[piece.part].Update(rest.substr(0, taken));
        rest.remove_prefix(taken);
        offset += taken;
      }
    }
    return Compare(name);
  }

 private:
  absl::Status Compare(const std::string& name) {
    for (auto& [index, sha] : digests_) {
      const internal::v1::CheckpointPart& part = parts_[index];
      const std::string digest = sha.FinishHex();
      if (digest == part.sha256()) continue;
      const std::string writer = name == kClientStateFile ? "the server" : absl::StrCat("rank ", part.rank());
      return CorruptCheckpoint(
          path_, absl::StrCat(name, ": what ", writer, " wrote", ExtentOf(part), " has the digest ", digest, ", not ",
                              part.sha256(), " as when it was written"));
    }
    return absl::OkStatus();
  }

  static std::string ExtentOf(const internal::v1::CheckpointPart& part) {
    if (part.ranges().empty()) return "";
    return absl::StrCat(" between bytes ", part.ranges(0).begin(), " and ", RunsOf(*part.ranges().rbegin()).end());
  }

  const std::string& path_;
  const CheckpointParts& parts_;
  const GoesOn& goes_on_;
  std::map<int, Sha256> digests_;
};

}  // namespace

absl::Status CorruptCheckpoint(const std::string& path, std::string_view what) {
  return MakeError(
      Reason::kCorruptCheckpoint,
      absl::StrCat(path, "/", std::string(what), "; restore the checkpoint from a backup, or load another one"));
}

absl::StatusOr<CheckpointFolder> CheckpointFolder::Open(const std::string& path) {
  ASSIGN_OR_RETURN(UniqueFd fd, OpenFolderAt(AT_FDCWD, path, path));
  CheckpointFolder folder(path, std::move(fd));
  for (const std::string_view name : kPartFolders) RETURN_IF_ERROR(folder.OpenInside(std::string(name)));
  return folder;
}

// A copy may have left out a folder without a file; something else in its place is found by FindFiles.
absl::Status CheckpointFolder::OpenInside(const std::string& name) {
  absl::StatusOr<UniqueFd> opened = OpenFolderAt(fd_.get(), name, absl::StrCat(path_, "/", name));
  if (absl::IsNotFound(opened.status()) || absl::IsInvalidArgument(opened.status())) return absl::OkStatus();
  RETURN_IF_ERROR(opened.status());
  inside_[name] = *std::move(opened);
  return absl::OkStatus();
}

absl::StatusOr<FoundFiles> CheckpointFolder::FindFiles() const {
  FoundFiles found;
  RETURN_IF_ERROR(AddFiles(fd_.get(), "", found));
  for (const auto& [name, fd] : inside_) RETURN_IF_ERROR(AddFiles(fd.get(), absl::StrCat(name, "/"), found));
  return found;
}

absl::Status CheckpointFolder::AddFiles(int fd, const std::string& prefix, FoundFiles& found) const {
  // closedir closes its descriptor, and a duplicate would share the position in the folder.
  ASSIGN_OR_RETURN(UniqueFd listed, OpenFolderAt(fd, ".", path_));
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(listed.get()), closedir);
  if (entries == nullptr) return ErrnoStatus("read", path_, errno);
  listed.Release();
  while (true) {
    errno = 0;
    const dirent* entry = readdir(entries.get());
    if (entry == nullptr) return errno == 0 ? absl::OkStatus() : ErrnoStatus("read", path_, errno);
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (prefix.empty() && (name == kManifestFile || inside_.contains(std::string(name)))) continue;
    const std::string file = absl::StrCat(prefix, std::string(name));
    struct stat info;
    if (fstatat(fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
      return ErrnoStatus("stat", absl::StrCat(path_, "/", file), errno);
    }
    if (S_ISREG(info.st_mode)) {
      found[file] = static_cast<uint64_t>(info.st_size);
    } else {
      found[file] = std::nullopt;
    }
  }
}

absl::StatusOr<RegularFile> CheckpointFolder::OpenFile(const std::string& file) const {
  const size_t slash = file.find('/');
  int fd = fd_.get();
  if (slash != file.npos) {
    const auto folder = inside_.find(file.substr(0, slash));
    if (folder == inside_.end()) return CorruptCheckpoint(path_, absl::StrCat(file, ": is missing"));
    fd = folder->second.get();
  }
  absl::StatusOr<RegularFile> opened =
      RegularFile::OpenAt(fd, slash == file.npos ? file : file.substr(slash + 1), absl::StrCat(path_, "/", file));
  if (absl::IsNotFound(opened.status())) return CorruptCheckpoint(path_, absl::StrCat(file, ": is missing"));
  if (absl::IsInvalidArgument(opened.status())) {
    return CorruptCheckpoint(path_, absl::StrCat(file, ": is not a regular file"));
  }
  return opened;
}

absl::StatusOr<std::string> CheckpointFolder::Read(const std::string& file, uint64_t bytes_max) const {
  const absl::StatusOr<RegularFile> opened = OpenFile(file);
  RETURN_IF_ERROR(opened.status());
  if (opened->bytes() > bytes_max) {
    return CorruptCheckpoint(path_, absl::StrCat(file, ": has ", opened->bytes(), " bytes, the limit is ", bytes_max));
  }
  std::string content(opened->bytes(), '\0');
  if (const absl::Status read = opened->ReadAt(0, content.data(), content.size()); !read.ok()) {
    return CorruptCheckpoint(path_, absl::StrCat(file, ": ", std::string(read.message())));
  }
  return content;
}

absl::Status CheckpointFolder::Sync(const FilesOfParts& files) const {
  for (const auto& [name, contents] : files) {
    ASSIGN_OR_RETURN(const RegularFile file, OpenFile(name));
    RETURN_IF_ERROR(SyncFd(file.fd(), absl::StrCat(path_, "/", name)));
  }
  for (const auto& [name, fd] : inside_) RETURN_IF_ERROR(SyncFd(fd.get(), absl::StrCat(path_, "/", name)));
  return SyncFd(fd_.get(), path_);
}

absl::Status CheckpointFolder::CheckDigests(const FilesOfParts& files, const CheckpointParts& parts,
                                            const GoesOn& goes_on) const {
  std::string buffer(kReadBytes, '\0');
  for (const auto& [name, contents] : files) {
    ASSIGN_OR_RETURN(const RegularFile file, OpenFile(name));
    RETURN_IF_ERROR(FileCheck(path_, parts, goes_on).Run(name, contents, file, buffer));
  }
  return absl::OkStatus();
}

}  // namespace stemma::server
