// Which checkpoint recovery begins with, which ones are kept, and what they are called. Pure: the journal's state in,
// decisions out.
//
// A lineage's weights at a step are a checkpoint's, or the model directory's at step 0, and the steps after it. Where
// requests are kept (durability REPLAY) those can be computed again; else they are lost with the ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "stemma/internal/v1/journal.pb.h"
#include "stemma/internal/v1/worker.pb.h"

namespace stemma::server {

// What --resume says in place of a checkpoint's name: the newest one where the journal is new; none.
inline constexpr std::string_view kResumeNewest = "auto", kResumeNothing = "none";

// Weights that a generation loads.
struct WeightsBase {
  std::string checkpoint = {};  // empty: the model directory's
  uint64_t step = 0;
  bool operator==(const WeightsBase&) const = default;
};

// Null: the journal does not know it.
const internal::v1::KnownCheckpoint* FindCheckpoint(const internal::v1::JournalState& state, const std::string& name);

// The newest of the lineage in which nothing wrong was found; null: there is none.
const internal::v1::KnownCheckpoint* NewestSound(const internal::v1::JournalState& state);

// Whether the decided steps after `step` are all kept.
bool CanRecompute(const internal::v1::JournalState& state, uint64_t step);

// Whether weights at `step` are in the middle of a kept request: some of its steps are in them, and others are not, or
// may still come. Recovery begins at a request's first step.
bool IsInsideKept(const internal::v1::JournalState& state, uint64_t step);

// Returns the newest sound checkpoint from which the lineage's weights can be had; where that is true of none, the
// newest one. `replays`: decided steps are computed again.
WeightsBase ChooseBase(const internal::v1::JournalState& state, bool replays);
// The same, of these checkpoints in the place of the journal's.
WeightsBase ChooseBase(const internal::v1::JournalState& state, std::span<const internal::v1::KnownCheckpoint> of,
                       bool replays);

// Whether a recovery that begins with `base` cannot bring the weights back to `step`, where the ranks were: the lineage
// ends.
bool GivesUpSteps(const internal::v1::JournalState& state, const WeightsBase& base, uint64_t step, bool replays);

// Returns the time that a checkpoint says it was saved at, in seconds since 1970: later than that of any other, so
// that a clock that was put back does not make the newest lineage look older than one that was left.
double SavedAtSeconds(const internal::v1::JournalState& state, absl::Time now);

// Returns the furthest checkpoint of the lineage that was saved last, with which a new journal begins by itself; empty:
// there is none. Within a lineage steps say what is newer, whatever the clock said.
std::string FurthestOfNewestLineage(std::span<const internal::v1::KnownCheckpoint> found);

// Returns the digest that its weights have in this dtype; null: it was neither saved nor loaded in it.
const std::string* DigestIn(const internal::v1::KnownCheckpoint& checkpoint, const std::string& dtype);

// Returns the newest of the checkpoints that the lineage's steps led to, where none of them can be read and a recovery
// would give all steps up: it would begin with the model directory, or with a checkpoint of step 0. Of a lineage that
// began with a checkpoint of step 0 it is that one where none is left, for the directory may hold other weights. Else
// null.
const internal::v1::KnownCheckpoint* MissedCheckpoint(const internal::v1::JournalState& state, const WeightsBase& base,
                                                      bool replays);

// Returns the step up to which the lineage's weights are also those of a lineage that begins with the base: its step
// where it is the lineage's own, else 0.
uint64_t SharedSteps(const internal::v1::JournalState& state, const WeightsBase& base);

// Whether a request whose last applied step is `last_step` (0: none) stays what it is when its lineage's weights go
// back to `step`.
bool SurvivesLoss(bool is_final, uint64_t last_step, uint64_t step);

// Returns the names of those that may go, oldest first: all but the pinned ones, the newest `keep` of the others, and
// the newest `keep` sound ones of the lineage.
std::vector<std::string> SurplusCheckpoints(const internal::v1::JournalState& state, uint32_t keep);

// Whether a request that is open, or whose steps may be computed again, reads the checkpoint's weights.
bool IsReadByKept(const internal::v1::JournalState& state, const std::string& name);

// Whether the weights that a request reads can be read. Errors: NOT_FOUND - there is no such checkpoint;
// CORRUPT_CHECKPOINT - it is known to be damaged.
absl::Status CheckReadable(const internal::v1::JournalState& state, const std::vector<std::string>& checkpoints);

// Returns what the ranks of a run in `dtype` are told of weights that a request names. REQUIRES: they can be read.
internal::v1::PassWeights PassWeightsOf(const internal::v1::JournalState& state, const std::string& name,
                                        const std::string& dtype);

// The error of a checkpoint in which something wrong was found.
absl::Status DamagedError(const internal::v1::KnownCheckpoint& checkpoint);

// The folder of a save that is not whole yet.
std::string TemporaryFolderOf(const std::string& name);

// Returns step-00000120, or step-00000120-2, ..., the first that is not taken.
std::string AutomaticName(uint64_t step, const std::function<bool(const std::string&)>& taken);

}  // namespace stemma::server
