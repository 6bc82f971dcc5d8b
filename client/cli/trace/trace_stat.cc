#include "client/cli/trace/trace_stat.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/arrays.h"

namespace stemma::cli {
namespace {

// The smallest value that at least `share` of the sorted values do not exceed.
int64_t Quantile(const std::vector<int64_t>& sorted, double share) {
  const auto rank = std::lround(share * static_cast<double>(sorted.size() - 1));
  return sorted[static_cast<size_t>(rank)];
}

Record Distribution(std::vector<int64_t> values) {
  Record record = Record::object();
  if (values.empty()) return record;
  std::sort(values.begin(), values.end());
  const int64_t sum = std::accumulate(values.begin(), values.end(), int64_t{0});
  record["min"] = values.front();
  record["p50"] = Quantile(values, 0.5);
  record["mean"] = static_cast<double>(sum) / static_cast<double>(values.size());
  record["p90"] = Quantile(values, 0.9);
  record["max"] = values.back();
  return record;
}

Record CountRatio(int64_t numerator, int64_t denominator) {
  return denominator == 0 ? Record() : Record(static_cast<double>(numerator) / static_cast<double>(denominator));
}

}  // namespace

void TraceStat::Add(const std::vector<v1::PromptGroup>& groups) {
  ++requests_;
  for (const v1::PromptGroup& group : groups) {
    LengthGroup lengths = {.prompt = TokenArray(group.prompt_tokens()).size(), .responses = {}};
    for (const v1::Rollout& rollout : group.rollouts()) {
      const int64_t response = TokenArray(rollout.response_tokens()).size();
      lengths.responses.push_back(response);
      unmasked_tokens_ += MaskView(rollout.response_mask(), response).CountOnes();
    }
    prompt_tokens_.push_back(lengths.prompt);
    rollouts_.push_back(group.rollouts_size());
    response_tokens_.insert(response_tokens_.end(), lengths.responses.begin(), lengths.responses.end());
    bound_.Add(lengths);
  }
}

Record TraceStat::ToRecord() const {
  Record record;
  record["requests"] = requests_;
  record["groups"] = prompt_tokens_.size();
  record["rollouts"] = response_tokens_.size();
  record["prompt_tokens"] = Distribution(prompt_tokens_);
  record["response_tokens"] = Distribution(response_tokens_);
  record["rollouts_per_group"] = Distribution(rollouts_);
  record["unmasked_tokens"] = unmasked_tokens_;
  record["tokens_dense"] = bound_.tokens_dense();
  record["tokens_reuse"] = bound_.tokens_reuse();
  record["prefix_ratio"] = CountRatio(bound_.prefix_rows_dense(), bound_.tokens_dense());
  record["token_saving_bound"] = CountRatio(bound_.tokens_dense(), bound_.tokens_reuse());
  return record;
}

}  // namespace stemma::cli
