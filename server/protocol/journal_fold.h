// Folds the rows of the journal, in their order, into what a server knows of its earlier lives. Pure: tests fold
// without a disk. Used by the server at its start, and by History with each row that it adds, so that what a restart
// finds is what the running server holds.
//
// Invariants of a state that rows were folded into:
//  (1) an id names at most one of `requests`, and at most one open one of `kept`.
//  (2) `step` grows by one with each decided step of outcome APPLIED, and falls with each that is undone; a lineage
//      begins at 0, or at the step of its checkpoint.
//  (3) at most `requests_kept` of `requests` are final; the ids of those that were dropped are in `expired_ids`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/protocol/known_requests.h"
#include "stemma/internal/v1/journal.pb.h"

namespace stemma::server {

// Folds a row of those that follow each other. `requests`: of the state, for all rows that are folded into it. Adds to
// `dropped` the spooled files of the requests that the row lets go of; a snapshot lets go of none: it stands for rows
// that did. Errors: DataLoss - the row cannot follow what was folded: no server wrote it after those rows;
// FailedPrecondition - it is of a kind that a newer version writes.
absl::Status FoldRow(const internal::v1::JournalRow& row, uint64_t requests_kept, internal::v1::JournalState& state,
                     KnownRequests& requests, std::vector<std::string>& dropped);
// The same, for whoever does not ask for the files. Takes over what a snapshot holds, which may be large, in place of a
// copy.
absl::Status FoldRow(internal::v1::JournalRow&& row, uint64_t requests_kept, internal::v1::JournalState& state,
                     KnownRequests& requests);
// Folds a single row, at a cost that grows with the requests that are kept.
absl::Status FoldRow(const internal::v1::JournalRow& row, uint64_t requests_kept, internal::v1::JournalState& state);

// The steps that every rank has applied: `step`, unless the last decision was not carried out yet.
uint64_t AppliedSteps(const internal::v1::JournalState& state);

// The newest of this id; null: its groups are not kept.
const internal::v1::KeptRequest* FindKept(const internal::v1::JournalState& state, const std::string& id);

// Null: nothing was decided about its step k.
const internal::v1::KeptStep* FindStep(const internal::v1::KeptRequest& kept, uint32_t k);
internal::v1::KeptStep* FindStep(internal::v1::KeptRequest& kept, uint32_t k);

// Returns the model's step after the last decided step of it that is applied; 0: there is none, and recomputing the
// weights does not need the request.
uint64_t LastStep(const internal::v1::KeptRequest& kept);

// Fills in what a result says once all its steps are done: the metrics of the request, and warnings.
void CompleteResult(v1::UpdateResult& result);

}  // namespace stemma::server
