// The trace of a step: what a worker's spans may hold, and how those of all ranks become what the client hears. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "server/protocol/gang.h"
#include "stemma/internal/v1/worker.pb.h"
#include "stemma/v1/step_trace.pb.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

// Whether the request asks for a trace of its step k.
bool IsTraced(const v1::UpdateHeader& header, uint32_t k);

// Returns how many spans each of so many ranks may record of a step, so that all together fit a message
// (common/base/message_sizes.h). At least one.
uint32_t TraceSpansMax(uint32_t num_ranks);

// Checks what needs no state. Errors: InvalidArgument, which names the field: more than kRankTraceSpansMax, a kind that
// is not known, a time beyond every step, a name that is none, spans that are not in order.
absl::Status CheckSpans(std::string_view field, const v1::SpanList& spans);

// Puts together what the ranks recorded of one step, in their order. REQUIRES: one of each for each rank of the gang;
// the spans were checked.
v1::StepTrace MakeStepTrace(const Gang& gang, std::span<const internal::v1::Vote> votes,
                            std::span<const internal::v1::Applied> applied);

}  // namespace stemma::server
