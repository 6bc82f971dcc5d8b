#include "worker/checkpoint/checkpoint_writer.h"

#include <cerrno>
#include <new>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "worker/checkpoint/part_writer.h"
#include "worker/model/model_files.h"

namespace stemma::worker {
namespace {

// Hashed and written at a time, so that the second of the two finds it in the caches.
constexpr size_t kWriteBytes = size_t{1} << 20;

// Appends the next bytes of what was begun.
absl::Status AppendBytes(PartWriter& writer, std::string_view bytes, const std::atomic<bool>& cancelled) {
  for (size_t done = 0; done < bytes.size(); done += kWriteBytes) {
    if (cancelled) return absl::CancelledError("the worker ends before its part of the checkpoint is written");
    RETURN_IF_ERROR(writer.Append(bytes.substr(done, kWriteBytes)));
  }
  return absl::OkStatus();
}

absl::StatusOr<internal::v1::CheckpointPart> WriteShare(const CheckpointFiles& files, const FileShare& share,
                                                        const PieceReader& read, const std::atomic<bool>& cancelled) {
  ASSIGN_OR_RETURN(PartWriter writer, PartWriter::Open(files.folder, share.name, files.rank));
  if (!share.front.empty()) {
    writer.Begin({.length = share.front.size()});
    RETURN_IF_ERROR(AppendBytes(writer, share.front, cancelled));
  }
  for (const StatePiece& piece : share.pieces) {
    writer.Begin(piece.bytes);
    RETURN_IF_ERROR(
        read(share.kind, piece, [&](std::string_view bytes) { return AppendBytes(writer, bytes, cancelled); }));
  }
  return writer.Close();
}

// The config that was loaded, in the dtype of the files: one that differs would make a checkpoint that nothing loads.
absl::StatusOr<std::string> CheckpointConfig(const CheckpointFiles& files, const std::string& path,
                                             const std::string& content) {
  ASSIGN_OR_RETURN(std::string changed, ConfigWithDtype(path, content, files.dtype));
  RETURN_IF_ERROR(CheckConfigStays(path, changed, files.source->config));
  return changed;
}

// A file without tensors as a share: all of it is its front.
absl::StatusOr<FileShare> OtherFile(const CheckpointFiles& files, const std::string& name, const std::string& path) {
  FileShare share = {.name = name, .kind = StateKind::kMaster, .front = files.index, .pieces = {}};
  if (name == kIndexFile) return share;
  ASSIGN_OR_RETURN(share.front, ReadOtherFile(path));
  if (name == kConfigFile) {
    ASSIGN_OR_RETURN(share.front, CheckpointConfig(files, path, share.front));
  }
  return share;
}

absl::StatusOr<CheckpointParts> WriteFiles(const CheckpointFiles& files, const PieceReader& read,
                                           const std::atomic<bool>& cancelled) {
  CheckpointParts parts;
  const auto write = [&](const FileShare& share) -> absl::Status {
    ASSIGN_OR_RETURN(parts.emplace_back(), WriteShare(files, share, read, cancelled));
    if (FailpointFails("checkpoint.part_written", files.rank)) return ErrnoStatus("write", share.name, ENOSPC);
    return absl::OkStatus();
  };
  for (const FileShare& share : files.shares) RETURN_IF_ERROR(write(share));
  if (files.source == nullptr) return parts;
  for (const auto& [name, path] : files.source->other_files) {
    RETURN_IF_ERROR(MakeFolderOf(files.folder, name));
    ASSIGN_OR_RETURN(const FileShare share, OtherFile(files, name, path));
    RETURN_IF_ERROR(write(share));
  }
  return parts;
}

}  // namespace

// The thread of saves knows no exceptions: one would end the worker, and with it the steps that are not saved.
absl::StatusOr<CheckpointParts> WriteCheckpointFiles(const CheckpointFiles& files, const PieceReader& read,
                                                     const std::atomic<bool>& cancelled) {
  try {
    return WriteFiles(files, read, cancelled);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the host has no memory to write the checkpoint's files");
  }
}

}  // namespace stemma::worker
