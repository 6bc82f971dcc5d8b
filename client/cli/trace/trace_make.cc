#include "client/cli/trace/trace_make.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "client/cli/calls/interrupt.h"
#include "client/cli/calls/log_probs.h"
#include "client/cli/output/progress.h"
#include "common/base/status_macros.h"
#include "common/trace/trace.h"

namespace stemma::cli {
namespace {

absl::StatusOr<LengthDistribution> ParseOption(const std::string& option, const std::string& text) {
  auto distribution = LengthDistribution::Parse(text);
  if (distribution.ok()) return distribution;
  return UsageError(absl::StrCat(option, ": ", distribution.status().message()));
}

// The vocabulary is the model's unless it is given.
absl::Status UseModel(Connection& connection, SyntheticTraceOptions& synthetic) {
  ASSIGN_OR_RETURN(const auto model, connection.Call(&v1::TrainingService::Stub::GetModel, v1::GetModelRequest()));
  if (synthetic.vocab_size == 0) synthetic.vocab_size = static_cast<int64_t>(model.vocab_size());
  return absl::OkStatus();
}

absl::Status UseModelLogProbs(Connection& connection, const SyntheticTraceOptions& options, int64_t step,
                              TraceRequest& request) {
  const LogProbQuery query = {.request_id = absl::StrCat("trace-make-", options.seed, "/", step),
                              .temperature = options.temperature};
  ASSIGN_OR_RETURN(const auto results, QueryLogProbs(connection, query, request.groups));
  for (v1::PromptGroup& group : request.groups) {
    RandomValues random(options.seed, absl::StrCat("log_probs ", group.uid()));
    for (v1::Rollout& rollout : *group.mutable_rollouts()) {
      const auto found = results.find(rollout.rollout_id());
      if (found == results.end() || found->second.log_probs.empty()) {
        return absl::InternalError(absl::StrCat("the server sent no log-probs of ", rollout.rollout_id()));
      }
      SetLogProbs(options, request.header, found->second.log_probs, random, rollout);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeTrace(TraceMakeOptions options) {
  SyntheticTraceOptions& synthetic = options.synthetic;
  ASSIGN_OR_RETURN(synthetic.rollouts, ParseOption("--n", options.rollouts));
  ASSIGN_OR_RETURN(synthetic.prompt_tokens, ParseOption("--prompt-len", options.prompt_tokens));
  ASSIGN_OR_RETURN(synthetic.response_tokens, ParseOption("--response-len", options.response_tokens));
  const auto header = SyntheticHeader(synthetic);
  if (!header.ok()) return UsageError(std::string(header.status().message()));
  std::unique_ptr<Connection> connection;
  if (!options.server.address.empty()) {
    ASSIGN_OR_RETURN(connection, Connection::Open(options.server));
    RETURN_IF_ERROR(UseModel(*connection, synthetic));
  }
  if (synthetic.vocab_size == 0) return UsageError("--vocab is missing (or --server, whose model has one)");
  const TraceArrays arrays = options.base64 ? TraceArrays::kBase64 : TraceArrays::kNumbers;
  CatchInterrupts();  // before there is a file to remove
  absl::StatusOr<TraceWriter> created = TraceWriter::Create(options.path, arrays);
  if (!created.ok()) return UsageError(std::string(created.status().message()));
  TraceWriter writer = *std::move(created);
  Progress progress(synthetic.steps, options.progress);
  for (int64_t step = 0; step < synthetic.steps; ++step) {
    if (Interrupted()) return PartialError(absl::StrCat("interrupted: ", options.path, " is not kept"));
    progress.Show(step, "requests");
    auto groups = SyntheticGroups(synthetic, *header, step);
    if (!groups.ok()) return UsageError(std::string(groups.status().message()));
    TraceRequest request = {.header = *header, .groups = *std::move(groups)};
    const bool has_log_probs = header->has_old() || header->has_ref();
    if (connection && has_log_probs) RETURN_IF_ERROR(UseModelLogProbs(*connection, synthetic, step, request));
    RETURN_IF_ERROR(writer.Write(request));
  }
  return writer.Close();
}

}  // namespace stemma::cli
