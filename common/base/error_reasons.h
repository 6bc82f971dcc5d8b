// The reasons of errors, in one table: the word that travels, its code, who has to act, and whether the same call may
// succeed later by itself. docs/errors.md says when each comes and what to do; tests/repo compares it with this table.
// An error of ours names a reason of this enum, so that one without a row cannot be made.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace stemma {

enum class Reason {
  kInvalidRequest,
  kShortStream,
  kRequestIdReused,
  kExportExists,
  kCheckpointExists,
  kLineageMismatch,
  kStepMismatch,
  kUnsupported,
  kNonfiniteGradient,
  kNonfiniteUpdate,
  kRequestOpen,
  kRequestIdExpired,
  kCheckpointInUse,
  kRolledBack,
  kQueueFull,
  kGroupTooLarge,
  kServerMemory,
  kLimitExceeded,
  kDiskFull,
  kFileTooLarge,
  kReadOnly,
  kStarting,
  kRecovering,
  kDraining,
  kStreamIdle,
  kAttemptsExhausted,
  kNotFound,
  kCancelled,
  kJournalBehind,
  kCorruptJournal,
  kDiverged,
  kCorruptSpool,
  kCorruptCheckpoint,
  kInternal,
};

// USER: the request must change. SERVER: the server, its machine or its state is the cause.
enum class Category { kUser, kServer };

struct ReasonRow {
  Reason reason;
  std::string_view name;  // as it travels
  absl::StatusCode code;
  Category category;
  bool retry = false;  // the same call may be sent again after kRetryAfter: the error carries RetryInfo
};

inline constexpr absl::Duration kRetryAfter = absl::Seconds(1);

std::span<const ReasonRow> ReasonTable();
const ReasonRow& RowOf(Reason reason);
// Returns nullopt for a word that this program does not know: it talks to a newer one.
std::optional<Reason> FindReason(std::string_view name);

}  // namespace stemma
