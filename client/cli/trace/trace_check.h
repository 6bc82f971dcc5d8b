// Whether a server would take a request: the rules of common/admission, which the server runs. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/admission/run_numbers.h"
#include "common/model/model_config.h"
#include "common/trace/trace_json.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::cli {

struct TraceRules {
  v1::Limits limits;
  ModelConfig model;   // only vocab_size and max_positions are read
  RunNumbers numbers;  // of the run's dtype
};

// The limits and the dtype of a server without a run.yaml, and a model with every token and any number of positions.
TraceRules DefaultTraceRules();

struct TraceProblems {
  std::vector<std::string> texts;  // "header.loss.temperature: is -1, must be above 0"; of one request at most twenty
  uint64_t count = 0;              // all of them, those without a text included
};

// Paths are those of a trace's line: the header's fields are under `header`.
TraceProblems CheckRequest(TraceRequest request, const TraceRules& rules);

}  // namespace stemma::cli
