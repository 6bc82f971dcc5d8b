// The files of one checkpoint's folder: what is there, and whether it is what the parts say. The folder and those in it
// that parts may be in are held open, so that what is listed and what is read lie in the same folders; links are not
// followed.
//
// Thread safety: none. Errors: those of the disk (common/base/file.h); CORRUPT_CHECKPOINT, which names the file and
// says what to do.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file.h"
#include "common/base/unique_fd.h"
#include "server/store/checkpoint_parts.h"

namespace stemma::server {

// Makes the error about the folder at `path`, or a file of it; `what` names the file.
absl::Status CorruptCheckpoint(const std::string& path, std::string_view what);

// Is asked before so many bytes are read, 4 MiB at most, whether the reading goes on.
using GoesOn = std::function<bool(uint64_t bytes)>;

class CheckpointFolder {
 public:
  // Errors: NotFound - there is none; InvalidArgument - it is a link or no folder.
  static absl::StatusOr<CheckpointFolder> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // Returns what lies in the folder and in those of kPartFolders but the manifest, by the name that parts give it.
  absl::StatusOr<FoundFiles> FindFiles() const;
  // `file`: as parts name it, or the manifest. Errors: CORRUPT_CHECKPOINT - it is missing, or no regular file.
  absl::StatusOr<RegularFile> OpenFile(const std::string& file) const;
  // Returns the whole file. Errors: CORRUPT_CHECKPOINT - as OpenFile, or it is longer.
  absl::StatusOr<std::string> Read(const std::string& file, uint64_t bytes_max) const;
  // Makes the contents of all these files durable, then the names in those folders and in this one.
  absl::Status Sync(const FilesOfParts& files) const;
  // Reads every file once, and compares with the digests of its parts. Errors: Cancelled - `goes_on` said no, and
  // nothing is known. REQUIRES: CheckFiles found nothing.
  absl::Status CheckDigests(const FilesOfParts& files, const CheckpointParts& parts, const GoesOn& goes_on) const;

 private:
  CheckpointFolder(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  absl::Status OpenInside(const std::string& name);
  absl::Status AddFiles(int fd, const std::string& prefix, FoundFiles& found) const;

  std::string path_;
  UniqueFd fd_;                             // the folder
  std::map<std::string, UniqueFd> inside_;  // those of kPartFolders that are in it, by name
};

}  // namespace stemma::server
