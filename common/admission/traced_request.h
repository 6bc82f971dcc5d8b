// A line of a trace as the request that it is: what plans or checks a trace without a server builds it as a server
// would from its stream. Pure.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/admission/run_numbers.h"
#include "common/admission/training_request.h"
#include "common/model/model_config.h"
#include "common/trace/trace_json.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma {

// Errors: those of RequestBuilder.
absl::StatusOr<std::shared_ptr<const TrainingRequest>> BuildTraced(TraceRequest request, const v1::Limits& limits,
                                                                   const ModelConfig& model, const RunNumbers& numbers);

// Returns an error's text with the paths of a line: the API's header is `update`, a line's is `header`.
std::string WithPathsOfLine(const std::string& text);

}  // namespace stemma
