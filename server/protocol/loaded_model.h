// Whether a worker has loaded the model that its server plans for, and that the other ranks have. Pure. Each host reads
// its own copy of the model directory: one that differs trains another model, and no number of a step would show it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "stemma/internal/v1/worker.pb.h"

namespace stemma::server {

// `worker` names it to an operator. Errors: FailedPrecondition names the field in which its config.json differs from
// the server's; InvalidArgument - what it sent is none. A worker that tells no configuration is not asked for one.
absl::Status CheckConfigOfWorker(const std::string& worker, const ModelConfig& planned,
                                 const internal::v1::Ready& ready);

// What a rank has loaded, as it told.
struct LoadedModel {
  std::string digest;  // Ready.model_digest
  std::string files;   // Ready.model_files
};

// Errors: Aborted - the two have loaded different weights. Either may be the one that is wrong, so both try again.
absl::Status CheckSameModel(const std::string& worker, const LoadedModel& model, const std::string& other_worker,
                            const LoadedModel& other);

}  // namespace stemma::server
