// What workers say of the links between them: checked, merged over ranks, and made the rates that plans count with.
// Pure; used by Gang, the checks of worker messages and CalibrationKeeper.
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/repeated_field.h"
#include "server/planner/cost_model.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

using LinkReports = google::protobuf::RepeatedPtrField<v1::LinkInfo>;

// Errors: InvalidArgument, which names the field: more links than axes, an axis that is none or comes twice, seconds
// that are not finite or outside of the limits in common/base/mesh_links.h.
absl::Status CheckLinks(const LinkReports& links);

// Errors: InvalidArgument - an axis that has one rank in this mesh, or another number of ranks than was said.
absl::Status CheckLinksOfMesh(const v1::Mesh& mesh, const LinkReports& links);

// Adds a rank's links to those of others. Collectives wait for the slowest: of each axis the larger number counts,
// seconds of a message and of a byte apart.
void MergeLinks(const LinkReports& links, std::vector<v1::LinkInfo>& slowest);

// Returns the nearest power of the square root of two. Two probes of one network never agree to the digit, and plans
// that differ with them would sum in another order. Rounded so, most probes agree, and no rate is off by more than a
// fifth.
double RoundedSeconds(double seconds);

// Returns the rates with what was measured, rounded, in place of the guesses; an axis that was not measured keeps its
// own.
Rates WithLinks(Rates rates, std::span<const v1::LinkInfo> links);

}  // namespace stemma::server
