// The trace of one optimizer step as Chrome trace-event JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing
// open. Pure.
//
// A rank is a process, named by host and device. Its lanes are threads: `step` (PREPARE, APPLY), `compute` (what its
// engine does, one after the other), `waits` (when the engine was held by another rank or by a copy), `collectives` and
// `copies` (what goes on beside it; a second lane, "collectives 2", for what overlaps). Times are microseconds.
//
// Clocks: ranks are moved until the ends of their agreements meet, and all together so that the first PREPARE begins at
// 0. No rank leaves the agreement before the last has come to it, so the leavings differ by about the shortest stay of
// any rank in it: otherData.clock_error_us.
//
// A collective moves nothing before its last rank has come. So where all ranks recorded it, it says how long it waited
// for that rank (waiting_us) and how long it moved (moving_us); ranks' collectives of one name meet in their order.
#pragma once

#include <cstdint>
#include <string>

#include "stemma/v1/step_trace.pb.h"

namespace stemma::cli {

struct StepTraceLabels {
  std::string program;  // "stemma 1.2"
  std::string request_id;
  uint64_t step = 0;  // the model's step after it
};

std::string StepTraceJson(const v1::StepTrace& trace, const StepTraceLabels& labels);

}  // namespace stemma::cli
