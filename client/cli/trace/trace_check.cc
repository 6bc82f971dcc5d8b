#include "client/cli/trace/trace_check.h"

#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/admission/mini_batches.h"
#include "common/admission/normalization.h"
#include "common/admission/traced_request.h"
#include "common/base/error.h"
#include "common/base/run_config.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

// What the planner asks of each step when the request is accepted.
absl::Status CheckSteps(const TrainingRequest& request) {
  const v1::UpdateHeader& header = request.update;
  const MiniBatchRule rule = {.groups = static_cast<int64_t>(header.ppo_mini_batch_size()),
                              .shuffle = header.shuffle(),
                              .seed = header.seed(),
                              .payload_digest = request.digest};
  const StepNormalizer normalizer(header.loss(), request.groups);
  // Without a shuffle every epoch has the same steps.
  const uint64_t epochs = header.shuffle() && header.has_ppo_epochs() ? header.ppo_epochs() : 1;
  for (uint64_t epoch = 0; epoch < epochs; ++epoch) {
    for (const auto& mini_batch : MiniBatches(static_cast<uint32_t>(request.groups.size()), rule, epoch)) {
      RETURN_IF_ERROR(normalizer.Normalize(mini_batch).status());
    }
  }
  return absl::OkStatus();
}

TraceProblems ProblemsOf(const absl::Status& status) {
  TraceProblems problems;
  if (status.ok()) return problems;
  const ErrorDetails details = GetErrorDetails(status);
  for (const FieldViolation& violation : details.violations) {
    problems.texts.push_back(WithPathsOfLine(absl::StrCat(violation.field, ": ", violation.description)));
  }
  if (problems.texts.empty()) problems.texts.push_back(WithPathsOfLine(std::string(status.message())));
  problems.count = problems.texts.size();
  if (const auto all = details.metadata.find("violations"); all != details.metadata.end()) {
    if (!absl::SimpleAtoi(all->second, &problems.count)) problems.count = problems.texts.size();
  }
  return problems;
}

}  // namespace

TraceRules DefaultTraceRules() {
  v1::RunConfig config;
  FillDefaults(config);
  TraceRules rules = {.limits = config.limits(), .model = {}, .numbers = NumbersOfRun(RunDtypeOf(config.dtype()))};
  rules.model.vocab_size = int64_t{1} << 31;
  rules.model.max_positions = std::numeric_limits<int64_t>::max();
  return rules;
}

TraceProblems CheckRequest(TraceRequest request, const TraceRules& rules) {
  const auto built = BuildTraced(std::move(request), rules.limits, rules.model, rules.numbers);
  return ProblemsOf(built.ok() ? CheckSteps(**built) : built.status());
}

}  // namespace stemma::cli
