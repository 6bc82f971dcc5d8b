// What it means for jobs, and for the journal, that the weights are gone, or have another name. Called by Membership.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/protocol/coordinator_parts.h"

namespace stemma::server {

// Ends everything that is open, by `status`.
void FailEverything(const CoordinatorParts& parts, const absl::Status& status);
// Answers everything that is open by `status`; the next server goes on with the updates.
void LeaveEverything(const CoordinatorParts& parts, const absl::Status& status);

// Ends the lineage: the next one begins with these weights, and requests that trained others are rolled back. `level`:
// of the line that says so, an error unless a client has asked for it.
void EndLineage(const CoordinatorParts& parts, const WeightsBase& base, LogLevel level = LogLevel::kError);
// Lets the lineage go on under a new name. `what`: begins the sentence that says why.
void RenameLineage(const CoordinatorParts& parts, const std::string& what);

// Compares the model directory, which a generation has loaded, with the one that the lineage began with.
// Errors: FailedPrecondition - the steps that are to be computed again began with other weights, in another dtype, or
// with another config.json.
absl::Status CheckModel(const CoordinatorParts& parts, const internal::v1::Ready& ready);

// Forgets what an earlier server found wrong with the lineage's checkpoints, where it found none to go on from: their
// disk may be there again, or somebody has put them back.
void ReadMissedAgain(const CoordinatorParts& parts);
// Errors: CORRUPT_CHECKPOINT - to begin with `base` gives all steps up, and the lineage has checkpoints, none of which
// can be read: somebody has to look.
absl::Status CheckNoneMissed(const CoordinatorParts& parts, const WeightsBase& base);
// Ends the lineage where a recovery that begins with `base`, which was read, gives steps up.
void EndWhatIsLost(const CoordinatorParts& parts, const WeightsBase& base);
// Ends the lineage where a step has ruined its weights and requests are not kept: nobody makes them again.
void EndWhatIsRuined(const CoordinatorParts& parts);

// Counts that workers were lost, for this reason, where what ran was a step that was decided. Errors: DIVERGED - they
// were too often in a row: computing it again is what ends them, and nothing more is to be tried.
absl::Status LoseDecidedStep(const CoordinatorParts& parts, const std::string& reason);

// Drops the save that runs, which needs its ranks until all of them have written.
void LoseSave(const CoordinatorParts& parts);

}  // namespace stemma::server
