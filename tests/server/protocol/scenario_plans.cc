#include "tests/server/protocol/scenario_plans.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/base/error.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

void FillReport(uint32_t k, uint64_t seconds, v1::StepReport& report) {
  const auto predicted = static_cast<double>(seconds);
  report.set_peak_bytes(10 * (k + 1));
  report.add_clusters()->mutable_seconds()->set_suffix(predicted);
  report.add_clusters()->mutable_seconds()->set_suffix(predicted / 2);
  report.mutable_seconds()->set_suffix(1.5 * predicted);
  report.mutable_seconds()->set_apply(predicted);
}

// One cluster that runs nothing of any group, or with several ranks one of each: rank r computes group r.
void AddClusters(uint32_t num_ranks, v1::StepPlan& step) {
  if (num_ranks == 1) {
    step.add_clusters();
    return;
  }
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    v1::Cluster& cluster = *step.add_clusters();
    cluster.set_dp_rank(rank);
    cluster.add_waves()->add_members()->set_group(rank);
  }
}

// Whether nothing has a gradient in step k: the request's seed says so, of one step or, with shuffle, from one on.
bool IsEmpty(const v1::UpdateHeader& header, uint32_t k) {
  return header.has_seed() && (header.shuffle() ? k >= header.seed() : k == header.seed());
}

// A group of one rollout without a response: g with g/0.
v1::PromptGroup Group(const std::string& uid) {
  v1::PromptGroup group;
  group.set_uid(uid);
  group.add_rollouts()->set_rollout_id(uid + "/0");
  return group;
}

}  // namespace

uint64_t Number(const std::string& text) {
  uint64_t value = 0;
  CHECK(absl::SimpleAtoi(text, &value)) << text;
  return value;
}

Command::Command(const std::string& line) {
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(line, ' ', absl::SkipEmpty()))) {
    const std::vector<std::string> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
    const bool flag = word == "skip" || word == "validate" || word == "pass" || word == "fail" || word == "absent" ||
                      word == "exists" || word == "dense" || word == "nothing" || word == "moving" ||
                      word == "pinned" || word == "old" ||
                      ((word == "results" || word == "refused" || word == "unread" || word == "by_ranks") &&
                       !words.empty() && words[0] == "submit");
    if (parts.size() == 2)
      options[parts[0]] = parts[1];
    else if (flag)
      options[word] = "";
    else
      words.push_back(word);
  }
}

absl::StatusOr<RequestPlan> FakePlan(const TrainingRequest& request, uint32_t num_ranks) {
  RequestPlan result;
  const v1::UpdateHeader& header = request.update;
  if (request.kind == TrainingRequest::Kind::kVerify) {
    TrainingRequest dense = request;
    dense.kind = TrainingRequest::Kind::kUpdate;
    result.dense = std::make_shared<const RequestPlan>(*FakePlan(dense, num_ranks));
  }
  if (header.loss().has_clip_ratio_high()) result.repeats = num_ranks;
  result.report.set_budget_bytes(500);
  result.report.set_peak_bytes(static_cast<uint64_t>(header.loss().clip_ratio_c()));
  if (header.has_ref() || header.has_old()) {
    result.plan.mutable_log_prob_pass()->add_clusters();
    result.report.add_steps()->set_peak_bytes(999);
  }
  for (uint32_t k = 0; k < std::max(1u, header.ppo_epochs()); ++k) {
    v1::StepPlan& step = *result.plan.add_steps();
    step.set_epoch(k);
    step.add_groups(0);
    step.add_groups(1);
    const bool for_log_probs = k + 1 == header.loss().loss_scale_factor();
    if (!IsEmpty(header, k)) AddClusters(num_ranks, step);
    FillReport(k, header.ppo_mini_batch_size(), *result.report.add_steps());
    result.steps.push_back(
        {.denominator = 8.0 + k, .rollout_weights = {1 / (8.0 + k), 1 / (4.0 + k)}, .total_tokens = 100});
    if (!IsEmpty(header, k) && !for_log_probs) continue;
    result.steps.back().empty = {
        .count = for_log_probs ? 0u : 2u, .no_gradient = true, .warnings = {"nothing has a gradient"}};
  }
  return result;
}

namespace {

void ReadWeights(const std::string& name, v1::LogProbSource& source) {
  source.set_from(v1::LogProbSource::WEIGHTS);
  source.set_weights(name.empty() ? "policy" : name);
}

}  // namespace

std::shared_ptr<const TrainingRequest> MakeUpdate(const Command& command) {
  auto request = std::make_shared<TrainingRequest>();
  v1::UpdateHeader& header = request->update;
  v1::RequestHeader& common = *header.mutable_request();
  common.set_request_id(command.words.at(2));
  if (command.Has("wait")) common.set_wait_ms(command.Get("wait", 0));
  if (command.Has("expect")) common.set_expected_step(command.Get("expect", 0));
  if (command.Has("lineage")) common.set_expected_lineage(command.options.at("lineage"));
  if (command.Has("skip")) common.set_on_nonfinite(v1::SKIP);
  common.set_validate_only(command.Has("validate"));
  if (command.Text("schedule") == "reuse") common.set_schedule(v1::REUSE);
  if (command.Has("steps")) header.set_ppo_epochs(static_cast<uint32_t>(command.Get("steps", 1)));
  request->num_steps = command.Get("steps", 1);
  if (command.Has("by_ranks")) header.mutable_loss()->set_clip_ratio_high(1);
  if (command.Has("slow")) header.set_ppo_mini_batch_size(command.Get("slow", 0));
  if (command.Has("needs")) header.mutable_loss()->set_clip_ratio_c(static_cast<double>(command.Get("needs", 0)));
  if (command.Has("empty")) header.set_seed(command.Get("empty", 0));
  if (command.Has("empty_from")) header.set_seed(command.Get("empty_from", 0));
  header.set_shuffle(command.Has("empty_from"));
  if (command.Has("for_log_probs"))
    header.mutable_loss()->set_loss_scale_factor(1.0 + static_cast<double>(command.Get("for_log_probs", 0)));
  if (command.Has("pass")) ReadWeights(command.options.at("pass"), *header.mutable_ref());
  if (command.Has("old")) ReadWeights(command.options.at("old"), *header.mutable_old());
  header.mutable_adam()->set_max_grad_norm(static_cast<double>(command.Get("max_norm", 0)));
  header.set_return_log_probs(command.Has("results"));
  if (command.Has("trace")) header.set_trace_step(static_cast<uint32_t>(command.Get("trace", 0)));
  request->groups = {Group("g"), Group("h")};
  request->num_rollouts = 2;
  request->bytes = command.Get("bytes", 10);
  request->digest = command.Has("payload") ? command.options.at("payload") : "p";
  if (command.Has("refused")) request->refused = MakeError(Reason::kInvalidRequest, "not by the rules of today");
  if (command.Has("unread")) {
    request->refused = MakeError(Reason::kLimitExceeded, "too long");
    request->digest.clear();
  }
  return request;
}

std::shared_ptr<const TrainingRequest> MakeVerification(const Command& command) {
  auto request = std::make_shared<TrainingRequest>();
  request->kind = TrainingRequest::Kind::kVerify;
  v1::UpdateHeader& header = request->update;
  header.mutable_request()->set_request_id("v");
  if (command.Has("expect")) header.mutable_request()->set_expected_step(command.Get("expect", 0));
  if (command.Has("lineage")) header.mutable_request()->set_expected_lineage(command.options.at("lineage"));
  if (command.Has("needs")) header.mutable_loss()->set_clip_ratio_c(static_cast<double>(command.Get("needs", 0)));
  if (command.Has("nothing")) header.set_seed(0);
  if (command.Has("old")) ReadWeights(command.options.at("old"), *header.mutable_old());
  header.mutable_loss()->set_loss_mode("gpg");
  request->groups = {Group("g"), Group("h")};
  const std::string response(command.Get("tokens", 0) * sizeof(int32_t), '\0');
  for (v1::PromptGroup& group : request->groups) {
    group.mutable_rollouts(0)->set_response_tokens(response);
    group.mutable_rollouts(0)->set_advantage(1);
  }
  request->num_rollouts = 2;
  request->bytes = 10;
  request->digest = "p";
  return request;
}

std::shared_ptr<const TrainingRequest> MakeLogProb(const Command& command) {
  auto request = std::make_shared<TrainingRequest>();
  v1::RequestHeader& header = *request->log_prob.mutable_request();
  if (command.Has("expect")) header.set_expected_step(command.Get("expect", 0));
  if (command.Has("lineage")) header.set_expected_lineage(command.options.at("lineage"));
  request->kind = TrainingRequest::Kind::kLogProb;
  request->log_prob.set_weights(command.Has("weights") ? command.options.at("weights") : "policy");
  request->groups = {Group("g"), Group("h")};
  const std::string response(command.Get("tokens", 0) * sizeof(int32_t), '\0');
  for (v1::PromptGroup& group : request->groups) group.mutable_rollouts(0)->set_response_tokens(response);
  request->bytes = 10;
  return request;
}

v1::ExportWeightsRequest MakeExport(const Command& command) {
  v1::ExportWeightsRequest request;
  request.set_name(command.words.at(2));
  if (command.Has("lineage")) request.set_expected_lineage(command.options.at("lineage"));
  if (command.Has("dtype")) request.set_dtype(command.options.at("dtype"));
  return request;
}

}  // namespace stemma::server
