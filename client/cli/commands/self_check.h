// A tiny run of everything, for `stemma doctor`: a random model, `stemma local` on a mesh, the same request by reuse
// and dense with learning rate 0, a step, an export. Seconds on a machine that works; on another it gives up on workers
// that do not come after 90 s and 10 s for each rank, and on a request after 90 s. Leaves nothing behind; what is left
// where it is killed is removed by the next one, or by `stemma local`.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "client/cli/commands/machine_checks.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::cli {

// Errors: exit code 2 - the tiny model cannot be held by this mesh, or it has more ranks than one machine should start.
absl::Status CheckSelfCheckMesh(const v1::Mesh& mesh);

// Runs it. Returns how it went, and where it went well one check for each axis of several ranks: what its link was
// measured to be. REQUIRES: CheckSelfCheckMesh.
std::vector<Check> SelfCheck(const v1::Mesh& mesh);

}  // namespace stemma::cli
