#include "client/cli/calls/log_probs.h"

#include "client/cli/calls/submit.h"
#include "common/base/arrays.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

std::vector<double> Values(const std::string& bytes, v1::LogProbDtype dtype) {
  if (dtype == v1::FLOAT64) return DoubleArray(bytes).ToVector();
  const std::vector<float> values = FloatArray(bytes).ToVector();
  return {values.begin(), values.end()};
}

}  // namespace

absl::StatusOr<std::map<std::string, RolloutLogProbs>> QueryLogProbs(Connection& connection, const LogProbQuery& query,
                                                                     const std::vector<v1::PromptGroup>& groups) {
  v1::LogProbHeader header;
  header.mutable_request()->set_request_id(query.request_id);
  header.set_weights(query.weights);
  header.set_temperature(query.temperature);
  header.set_entropy(query.entropy);
  std::map<std::string, RolloutLogProbs> results;
  grpc::ClientContext context;
  RETURN_IF_ERROR(ComputeLogProb(connection.stub(), context, header, groups, [&](const v1::GroupResult& group) {
    for (const v1::RolloutResult& rollout : group.rollouts()) {
      results[rollout.rollout_id()] = {.log_probs = Values(rollout.log_probs(), group.dtype()),
                                       .entropy = Values(rollout.entropy(), group.dtype())};
    }
  }));
  return results;
}

}  // namespace stemma::cli
