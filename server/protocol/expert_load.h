// How evenly a step's rows chose the experts of a model: what the ranks' votes say of it, put together. Pure. Called
// with what votes say else (server/protocol/vote_merge.h, server/protocol/step_metrics.h).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/base/mesh.h"
#include "common/model/model_config.h"
#include "google/protobuf/map.h"
#include "stemma/internal/v1/worker.pb.h"

namespace stemma::server {

// Checks what a rank's vote tells. Errors: InvalidArgument - another rank speaks for its copy of the model, a layer or
// an expert is not the model's, or a layer comes twice: names the field.
absl::Status CheckExpertLoad(const v1::Mesh& mesh, const ModelConfig& model, uint32_t rank,
                             const internal::v1::Vote& vote);

// Adds what one vote tells to what others have told. REQUIRES: both are checked.
void MergeExpertLoad(const internal::v1::Vote& from, internal::v1::Vote& to);

// Sets moe/* of docs/metrics.md, where something was counted. `expert_sets`: ranks with experts of their own (ep).
void SetExpertMetrics(const internal::v1::Vote& merged, uint32_t expert_sets,
                      google::protobuf::Map<std::string, double>& metrics);

}  // namespace stemma::server
