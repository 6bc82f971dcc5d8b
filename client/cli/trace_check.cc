#include "client/cli/trace_check.h"

#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/arrays.h"
#include "common/loss_names.h"

namespace stemma {
namespace {

class Checker {
 public:
  void CheckHeader(const v1::UpdateHeader& header) {
    if (const auto mode = ParseLossMode(header.loss().loss_mode()); !mode.ok()) {
      Add("header.loss.loss_mode", mode.status().message());
    }
    if (const auto mode = ParseAggMode(header.loss().loss_agg_mode()); !mode.ok()) {
      Add("header.loss.loss_agg_mode", mode.status().message());
    }
    if (!header.adam().has_learning_rate()) Add("header.adam.learning_rate", "is missing");
  }

  void CheckGroup(const std::string& path, const v1::PromptGroup& group) {
    if (group.uid().empty()) Add(path + ".uid", "is missing");
    if (!uids_.insert(group.uid()).second) Add(path + ".uid", absl::StrCat("\"", group.uid(), "\" is there twice"));
    CheckTokens(path + ".prompt_tokens", group.prompt_tokens());
    if (group.prompt_tokens().empty()) Add(path + ".prompt_tokens", "is empty");
    for (int i = 0; i < group.rollouts_size(); ++i) {
      CheckRollout(absl::StrCat(path, ".rollouts[", i, "]"), group.rollouts(i));
    }
  }

  std::vector<std::string> TakeProblems() { return std::move(problems_); }

 private:
  void CheckRollout(const std::string& path, const v1::Rollout& rollout) {
    if (!rollout_ids_.insert(rollout.rollout_id()).second) {
      Add(path + ".rollout_id", absl::StrCat("\"", rollout.rollout_id(), "\" is there twice"));
    }
    CheckTokens(path + ".response_tokens", rollout.response_tokens());
    const int64_t tokens = TokenArray(rollout.response_tokens()).size();
    CheckNumbers(path + ".old_log_probs", rollout.old_log_probs(), tokens);
    CheckNumbers(path + ".rollout_log_probs", rollout.rollout_log_probs(), tokens);
    CheckNumbers(path + ".ref_log_prob", rollout.ref_log_prob(), tokens);
    CheckNumbers(path + ".token_advantages", rollout.token_advantages(), tokens);
    CheckNumbers(path + ".rollout_is_weights", rollout.rollout_is_weights(), tokens);
    CheckNumbers(path + ".loss_weights", rollout.loss_weights(), tokens);
    if (!std::isfinite(rollout.advantage())) Add(path + ".advantage", "is not finite");
    if (!std::isfinite(rollout.reward())) Add(path + ".reward", "is not finite");
  }

  void CheckTokens(const std::string& path, const std::string& bytes) {
    const TokenArray tokens(bytes);
    for (int64_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0) return Add(path, absl::StrCat("token ", i, " is ", tokens[i]));
    }
  }

  void CheckNumbers(const std::string& path, const std::string& bytes, int64_t tokens) {
    const FloatArray numbers(bytes);
    if (!bytes.empty() && numbers.size() != tokens) {
      Add(path, absl::StrCat("has ", numbers.size(), " numbers, the response ", tokens, " tokens"));
    }
    for (int64_t i = 0; i < numbers.size(); ++i) {
      if (!std::isfinite(numbers[i])) return Add(path, absl::StrCat("number ", i, " is not finite"));
    }
  }

  void Add(const std::string& path, absl::string_view problem) {
    problems_.push_back(absl::StrCat(path, ": ", problem));
  }

  std::vector<std::string> problems_;
  std::set<std::string> uids_;
  std::set<std::string> rollout_ids_;
};

}  // namespace

std::vector<std::string> CheckRequest(const TraceRequest& request) {
  Checker checker;
  checker.CheckHeader(request.header);
  for (size_t i = 0; i < request.groups.size(); ++i) {
    checker.CheckGroup(absl::StrCat("groups[", i, "]"), request.groups[i]);
  }
  std::vector<std::string> problems = checker.TakeProblems();
  if (request.groups.empty()) problems.push_back("groups: is empty");
  return problems;
}

}  // namespace stemma
