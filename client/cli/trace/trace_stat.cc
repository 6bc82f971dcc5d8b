#include "client/cli/trace/trace_stat.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/arrays.h"
#include "common/base/status_macros.h"
#include "common/trace/sample_tokens.h"

namespace stemma::cli {
namespace {

// Returns the smallest value that at least so many percent of the sorted values do not exceed. REQUIRES: not empty; at
// least 1 %.
int64_t Percentile(const std::vector<int64_t>& sorted, size_t percent) {
  return sorted[(sorted.size() * percent + 99) / 100 - 1];
}

Record Distribution(std::vector<int64_t> values) {
  Record record = Record::object();
  if (values.empty()) return record;
  std::sort(values.begin(), values.end());
  const int64_t sum = std::accumulate(values.begin(), values.end(), int64_t{0});
  record["min"] = values.front();
  record["p50"] = Percentile(values, 50);
  record["mean"] = static_cast<double>(sum) / static_cast<double>(values.size());
  record["p90"] = Percentile(values, 90);
  record["max"] = values.back();
  return record;
}

Record CountRatio(int64_t numerator, int64_t denominator) {
  return denominator == 0 ? Record() : Record(static_cast<double>(numerator) / static_cast<double>(denominator));
}

// Masks in base64 do not say how many tokens they are for.
absl::Status CheckMaskOf(const v1::PromptGroup& group, const v1::Rollout& rollout) {
  absl::Status mask = CheckMask(rollout.response_mask(), TokenArray(rollout.response_tokens()).size());
  if (mask.ok()) return mask;
  return absl::InvalidArgumentError(
      absl::StrCat("group ", group.uid(), ", rollout ", rollout.rollout_id(), ": response_mask ", mask.message()));
}

}  // namespace

absl::Status TraceStat::Add(const std::vector<v1::PromptGroup>& groups) {
  ++requests_;
  for (const v1::PromptGroup& group : groups) {
    ASSIGN_OR_RETURN(const LengthGroup lengths, LengthsOf(group));
    for (const v1::Rollout& rollout : group.rollouts()) {
      RETURN_IF_ERROR(CheckMaskOf(group, rollout));
      unmasked_tokens_ += UnmaskedTokens(rollout);
    }
    prompt_tokens_.push_back(lengths.prompt);
    rollouts_.push_back(group.rollouts_size());
    response_tokens_.insert(response_tokens_.end(), lengths.responses.begin(), lengths.responses.end());
    bound_.Add(lengths);
  }
  return absl::OkStatus();
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
