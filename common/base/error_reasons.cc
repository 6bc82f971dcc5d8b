#include "common/base/error_reasons.h"

#include <algorithm>
#include <array>

namespace stemma {
namespace {

using absl::StatusCode;
using enum Category;

constexpr bool kRetry = true;

constexpr auto kTable = std::to_array<ReasonRow>({
    {Reason::kInvalidRequest, "INVALID_REQUEST", StatusCode::kInvalidArgument, kUser},
    {Reason::kShortStream, "SHORT_STREAM", StatusCode::kInvalidArgument, kUser},
    {Reason::kRequestIdReused, "REQUEST_ID_REUSED", StatusCode::kAlreadyExists, kUser},
    {Reason::kExportExists, "EXPORT_EXISTS", StatusCode::kAlreadyExists, kUser},
    {Reason::kCheckpointExists, "CHECKPOINT_EXISTS", StatusCode::kAlreadyExists, kUser},
    {Reason::kLineageMismatch, "LINEAGE_MISMATCH", StatusCode::kAborted, kUser},
    {Reason::kStepMismatch, "STEP_MISMATCH", StatusCode::kAborted, kUser},
    {Reason::kUnsupported, "UNSUPPORTED", StatusCode::kFailedPrecondition, kUser},
    {Reason::kNonfiniteGradient, "NONFINITE_GRADIENT", StatusCode::kFailedPrecondition, kUser},
    {Reason::kNonfiniteUpdate, "NONFINITE_UPDATE", StatusCode::kFailedPrecondition, kUser},
    {Reason::kRequestOpen, "REQUEST_OPEN", StatusCode::kFailedPrecondition, kUser},
    {Reason::kRequestIdExpired, "REQUEST_ID_EXPIRED", StatusCode::kFailedPrecondition, kUser},
    {Reason::kCheckpointInUse, "CHECKPOINT_IN_USE", StatusCode::kFailedPrecondition, kUser},
    {Reason::kRolledBack, "ROLLED_BACK", StatusCode::kFailedPrecondition, kServer},
    {Reason::kQueueFull, "QUEUE_FULL", StatusCode::kResourceExhausted, kServer, kRetry},
    {Reason::kGroupTooLarge, "GROUP_TOO_LARGE", StatusCode::kResourceExhausted, kUser},
    {Reason::kServerMemory, "SERVER_MEMORY", StatusCode::kResourceExhausted, kServer, kRetry},
    {Reason::kLimitExceeded, "LIMIT_EXCEEDED", StatusCode::kResourceExhausted, kUser},
    {Reason::kDiskFull, "DISK_FULL", StatusCode::kResourceExhausted, kServer},
    {Reason::kFileTooLarge, "FILE_TOO_LARGE", StatusCode::kResourceExhausted, kServer},
    {Reason::kReadOnly, "READ_ONLY", StatusCode::kFailedPrecondition, kServer},
    {Reason::kStarting, "STARTING", StatusCode::kUnavailable, kServer, kRetry},
    {Reason::kRecovering, "RECOVERING", StatusCode::kUnavailable, kServer, kRetry},
    {Reason::kDraining, "DRAINING", StatusCode::kUnavailable, kServer, kRetry},
    {Reason::kStreamIdle, "STREAM_IDLE", StatusCode::kDeadlineExceeded, kUser},
    {Reason::kAttemptsExhausted, "ATTEMPTS_EXHAUSTED", StatusCode::kUnavailable, kServer, kRetry},
    {Reason::kNotFound, "NOT_FOUND", StatusCode::kNotFound, kUser},
    {Reason::kCancelled, "CANCELLED", StatusCode::kCancelled, kUser},
    {Reason::kJournalBehind, "JOURNAL_BEHIND", StatusCode::kDataLoss, kServer},
    {Reason::kCorruptJournal, "CORRUPT_JOURNAL", StatusCode::kDataLoss, kServer},
    {Reason::kDiverged, "DIVERGED", StatusCode::kDataLoss, kServer},
    {Reason::kCorruptSpool, "CORRUPT_SPOOL", StatusCode::kDataLoss, kServer},
    {Reason::kCorruptCheckpoint, "CORRUPT_CHECKPOINT", StatusCode::kDataLoss, kServer},
    {Reason::kInternal, "INTERNAL", StatusCode::kInternal, kServer},
});

// Row i is that of reason i, and no reason is left out.
constexpr bool IsInOrder() {
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (kTable[i].reason != static_cast<Reason>(i)) return false;
  }
  return kTable.back().reason == Reason::kInternal;
}
static_assert(IsInOrder());

}  // namespace

std::span<const ReasonRow> ReasonTable() { return kTable; }

const ReasonRow& RowOf(Reason reason) { return kTable[static_cast<size_t>(reason)]; }

std::optional<Reason> FindReason(std::string_view name) {
  const auto row = std::find_if(kTable.begin(), kTable.end(), [&](const ReasonRow& r) { return r.name == name; });
  if (row == kTable.end()) return std::nullopt;
  return row->reason;
}

}  // namespace stemma
