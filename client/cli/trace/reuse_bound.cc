#include "client/cli/trace/reuse_bound.h"

#include "common/cost/flops.h"

namespace stemma::cli {
namespace {

Record Ratio(double numerator, double denominator) {
  return denominator == 0 ? Record() : Record(numerator / denominator);
}

}  // namespace

void ReuseBound::Add(const LengthGroup& group) {
  const int64_t prefix = group.prompt - 1;
  const double prefix_flops = model_ ? PrefixFlops(*model_, prefix).total() : 0;
  bool prefix_counted = false;
  ++groups_;
  for (const int64_t response : group.responses) {
    ++rollouts_;
    if (response == 0) continue;
    ++rollouts_run_;
    tokens_dense_ += prefix + response;
    prefix_rows_dense_ += prefix;
    tokens_reuse_ += response + (prefix_counted ? 0 : prefix);
    const double suffix_flops = model_ ? SuffixFlops(*model_, prefix, response).total() : 0;
    flops_dense_ += prefix_flops + suffix_flops;
    flops_reuse_ += suffix_flops + (prefix_counted ? 0 : prefix_flops);
    prefix_counted = true;
  }
}

Record ReuseBound::ToRecord(const std::string& model_name) const {
  Record record;
  record["groups"] = groups_;
  record["rollouts"] = rollouts_;
  record["rollouts_run"] = rollouts_run_;
  record["tokens_dense"] = tokens_dense_;
  record["tokens_reuse"] = tokens_reuse_;
  record["tokens_saved"] = tokens_dense_ - tokens_reuse_;
  record["token_ratio"] = Ratio(static_cast<double>(tokens_dense_), static_cast<double>(tokens_reuse_));
  record["model"] = model_ ? Record(model_name) : Record();
  record["flops_dense"] = model_ ? Record(flops_dense_) : Record();
  record["flops_reuse"] = model_ ? Record(flops_reuse_) : Record();
  record["flops_ratio"] = Ratio(flops_dense_, flops_reuse_);
  return record;
}

}  // namespace stemma::cli
