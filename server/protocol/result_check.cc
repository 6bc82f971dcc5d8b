#include "server/protocol/result_check.h"

#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "server/protocol/worker_messages.h"

namespace stemma::server {
namespace {

absl::Status CheckArray(std::string_view name, const std::string& bytes, size_t tokens, size_t element_bytes) {
  if (bytes.empty() || bytes.size() == tokens * element_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(name), " has ", bytes.size(), " bytes for ", tokens,
                                                 " tokens of ", element_bytes, " bytes"));
}

}  // namespace

ResultCheck::ResultCheck(std::shared_ptr<const TrainingRequest> request) : request_(std::move(request)) {
  for (const v1::PromptGroup& group : request_->groups) {
    for (const v1::Rollout& rollout : group.rollouts()) {
      rollouts_[rollout.rollout_id()] = {.group = &group, .tokens = rollout.response_tokens().size() / sizeof(int32_t)};
    }
  }
}

absl::Status ResultCheck::Add(const v1::GroupResult& result) {
  if (result.dtype() != v1::FLOAT32 && result.dtype() != v1::FLOAT64) {
    return absl::InvalidArgumentError(absl::StrCat("results of dtype ", static_cast<int>(result.dtype())));
  }
  if (result.rollouts().empty()) return absl::InvalidArgumentError("results of no rollout");
  const size_t element_bytes = result.dtype() == v1::FLOAT64 ? sizeof(double) : sizeof(float);
  for (const v1::RolloutResult& rollout : result.rollouts()) {
    const auto it = rollouts_.find(rollout.rollout_id());
    if (it == rollouts_.end() || it->second.group->uid() != result.uid()) {
      return absl::InvalidArgumentError(absl::StrCat("a result of rollout ", WorkerText(rollout.rollout_id()),
                                                     " of group ", WorkerText(result.uid()),
                                                     ", which the request does not have"));
    }
    if (std::exchange(it->second.seen, true)) {
      return absl::InvalidArgumentError(absl::StrCat("a second result of rollout ", rollout.rollout_id()));
    }
    RETURN_IF_ERROR(CheckArray("log_probs", rollout.log_probs(), it->second.tokens, element_bytes));
    RETURN_IF_ERROR(CheckArray("entropy", rollout.entropy(), it->second.tokens, element_bytes));
    it->second.has_log_probs = !rollout.log_probs().empty();
  }
  return absl::OkStatus();
}

absl::Status ResultCheck::CheckAllCame() const {
  std::string first;
  int64_t missing = 0;
  for (const v1::PromptGroup& group : request_->groups) {
    for (const v1::Rollout& rollout : group.rollouts()) {
      const Expected& expected = rollouts_.at(rollout.rollout_id());
      if (expected.tokens == 0 || expected.has_log_probs) continue;
      if (missing++ == 0) first = rollout.rollout_id();
    }
  }
  if (missing == 0) return absl::OkStatus();
  return MakeError(Reason::kInternal, absl::StrCat("the workers ended the pass without the log-probs of ", missing,
                                                   " rollouts, the first is ", first));
}

}  // namespace stemma::server
