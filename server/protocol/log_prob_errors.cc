#include "server/protocol/log_prob_errors.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/admission/normalization.h"
#include "common/base/arrays.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

std::vector<double> Values(const std::string& bytes, v1::LogProbDtype dtype) {
  if (dtype == v1::FLOAT64) return DoubleArray(bytes).ToVector();
  const std::vector<float> values = FloatArray(bytes).ToVector();
  return {values.begin(), values.end()};
}

}  // namespace

LogProbErrors::LogProbErrors(const std::shared_ptr<const TrainingRequest>& request)
    : checks_{ResultCheck(request), ResultCheck(request)} {
  CHECK(request->has_loss());
  for (const v1::PromptGroup& group : request->groups) {
    missing_ += std::ranges::count_if(group.rollouts(), [&](const v1::Rollout& rollout) {
      return !rollout.response_tokens().empty() && RolloutRuns(request->update, rollout);
    });
  }
}

absl::Status LogProbErrors::Add(const v1::GroupResult& result, bool dense) {
  RETURN_IF_ERROR(checks_.at(dense ? 1 : 0).Add(result));
  for (const v1::RolloutResult& rollout : result.rollouts()) {
    std::vector<double> values = Values(rollout.log_probs(), result.dtype());
    const auto first = waiting_.find(rollout.rollout_id());
    if (first == waiting_.end()) {
      waiting_.emplace(rollout.rollout_id(), std::move(values));
      continue;
    }
    Compare(first->second, values);
    waiting_.erase(first);
  }
  return absl::OkStatus();
}

void LogProbErrors::Compare(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.empty() || a.size() != b.size()) return;
  --missing_;
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(a[i] - b[i]);
    if (!std::isnan(max_) && !(error <= max_)) max_ = error;
    sum_ += error;
    ++tokens_;
  }
}

absl::Status LogProbErrors::CheckAllCame() const {
  if (missing_ == 0) return absl::OkStatus();
  return MakeError(Reason::kInternal, absl::StrCat("the workers ended the verification without the log-probs of ",
                                                   missing_, " rollouts by both of its runs"));
}

}  // namespace stemma::server
