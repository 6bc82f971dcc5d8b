// What `stemma-server rank-meshes` answers, as `stemma mesh` shows it.
#pragma once

#include <ostream>

#include "client/cli/output/records.h"

namespace stemma::cli {

// Prints a table: what the numbers are of, the possible meshes, then the others with their reasons. `answer` has
// `model`, `trace`, and what server/main/rank_meshes.cc writes.
void WriteMeshes(const OutputOptions& options, const Record& answer, std::ostream& out);

}  // namespace stemma::cli
