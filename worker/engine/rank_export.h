// An export by all data-parallel ranks: one directory, the bytes that one rank would write. Called on the engine
// thread.
//
// Files are dealt to the ranks in turn; all write into one temporary folder, which rank 0 makes beside the target and
// renames when every rank says that its files are there. A rank that cannot still takes part to the next agreement, so
// that a full disk of one is an error of all, and leaves nothing.
//
// The collectives, in their order: "export begun", an agreement; "export folder", its path from rank 0; for each piece
// of a tensor whose master is in parts, in the order of the files, "masters" from each other owner to the file's
// writer; "export written" and "export renamed", agreements. Masters travel once at most: those that the writer has do
// not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_directory.h"
#include "worker/model/weights.h"
#include "worker/optim/shards.h"
#include "worker/parallel/communicator.h"

namespace stemma::worker {

struct ExportTarget {
  std::string path;
  std::optional<std::string> dtype;  // as of WeightsExport
};

// Returns the bytes of the safetensors files that this rank wrote. Errors: AlreadyExists - the target is there; those
// of WeightsExport and ExportFileWriter; Aborted - another rank could not; Unavailable - another rank has gone.
absl::StatusOr<uint64_t> ExportOnRanks(const Weights& weights, const ModelDirectory& source, const ExportTarget& target,
                                       const OptimizerShards& shards, Communicator& ranks);

}  // namespace stemma::worker
