// An export by all ranks of a mesh: one directory, the bytes that one rank would write. Called on the engine thread.
//
// Every rank writes what it owns straight into the files of one temporary folder (worker/model/weights_export.h), which
// the server has made beside the target, and which rank 0 renames when every rank says that its bytes are there. No
// rank makes it: when the server gives the ranks up it takes the folder away, so that ranks that were only stopped, and
// go on, write nothing that anybody finds. A rank that cannot still takes part to the next agreement, so that a full
// disk of one is an error of all, and leaves nothing.
//
// The collectives, in their order: "export_begun", "export_written" and "export_renamed", agreements. No weights
// travel.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_directory.h"
#include "worker/model/weights.h"
#include "worker/optim/ranges.h"
#include "worker/parallel/mesh_ranks.h"

namespace stemma::worker {

struct ExportTarget {
  std::string path;
  std::string folder;                // beside it; there, and empty
  std::optional<std::string> dtype;  // as of WeightsExport
};

// Returns the bytes of the safetensors files that this rank wrote: those of all ranks are the files'. `owned`: of this
// rank's parameters, as OptimizerShards::owned. Errors: AlreadyExists - the target is there; those of WeightsExport;
// Aborted - another rank could not; Unavailable - another rank has gone.
absl::StatusOr<uint64_t> ExportOnRanks(const Weights& weights, const ModelDirectory& source, const ExportTarget& target,
                                       const ParameterRanges& owned, const MeshRanks& ranks);

}  // namespace stemma::worker
