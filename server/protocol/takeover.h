// What a server takes over at its start: checkpoints that are on the disk and not in the journal, weights for a journal
// that is new, and open requests. Called by Membership.
#pragma once

#include "server/protocol/coordinator_parts.h"

namespace stemma::server {

// Brings the journal up to what is on the disk (CoordinatorOptions::checkpoints).
void TakeFoundCheckpoints(const CoordinatorParts& parts);

// Begins the lineage of a new journal, with the checkpoint that is to be resumed, or the model directory.
void BeginFirstLineage(const CoordinatorParts& parts);

// Where requests are not kept any more (durability REWIND), takes back a decision that no rank is known to have
// applied: nobody will carry it out.
void UndoWhatIsNotKept(const CoordinatorParts& parts);

// Ends the open requests whose groups no earlier server kept: they may be sent again.
void EndWhatIsNotKept(const CoordinatorParts& parts);

}  // namespace stemma::server
