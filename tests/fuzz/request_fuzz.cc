// The stream of an UpdateActor or ComputeLogProb call, part by part: it is refused, or becomes a request that keeps the
// limits, can be planned, and whose plan's steps have finite numbers.
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/admission/request_builder.h"
#include "common/base/arrays.h"
#include "common/base/run_config.h"
#include "glog/logging.h"
#include "server/protocol/request_plan.h"
#include "tests/common/admission/sent_stream.h"
#include "tests/common/model/small_configs.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/messages.h"

namespace stemma::fuzz {
namespace {

// Small enough that every limit is reached, and that a plan takes no second.
v1::RunConfig SmallRun() {
  v1::RunConfig config;
  config.set_model("m");
  v1::Limits& limits = *config.mutable_limits();
  limits.set_groups(8);
  limits.set_rollouts(24);
  limits.set_tokens(600);
  limits.set_steps(16);
  limits.set_planned_groups(24);
  FillDefaults(config);
  return config;
}

// As a listener reads it: what is no message ends the stream.
absl::StatusOr<std::shared_ptr<const TrainingRequest>> Receive(TrainingRequest::Kind kind, std::string_view input,
                                                               const v1::Limits& limits, const ModelConfig& model) {
  RequestBuilder builder(kind, limits, model, {});
  for (const std::string& text : SplitMessages(input)) {
    v1::GroupPart part;
    if (!part.ParseFromString(text)) return absl::InternalError("not a message");
    if (absl::Status status = builder.Add(part); !status.ok()) return status;
  }
  auto built = builder.Finish();
  if (built.ok() && !(*built)->refused.ok()) return (*built)->refused;
  return built;
}

void CheckAccepted(const TrainingRequest& request, const v1::Limits& limits, const ModelConfig& model) {
  CHECK(!request.groups.empty() && request.groups.size() <= limits.groups());
  CHECK_LE(request.num_rollouts, limits.rollouts());
  CHECK_LE(request.num_tokens, limits.tokens());
  uint64_t rollouts = 0;
  for (const v1::PromptGroup& group : request.groups) {
    rollouts += static_cast<uint64_t>(group.rollouts_size());
    CHECK_GE(TokenArray(group.prompt_tokens()).size(), 1);
    for (const int32_t token : TokenArray(group.prompt_tokens()).ToVector())
      CHECK(token >= 0 && token < model.vocab_size);
    for (const v1::Rollout& rollout : group.rollouts()) {
      for (const int32_t token : TokenArray(rollout.response_tokens()).ToVector()) {
        CHECK(token >= 0 && token < model.vocab_size);
      }
    }
  }
  CHECK_EQ(rollouts, request.num_rollouts);
}

void CheckPlanned(const TrainingRequest& request, const server::RequestPlan& plan) {
  if (request.kind != TrainingRequest::Kind::kUpdate) return;
  CHECK_EQ(plan.num_steps(), request.num_steps);
  for (const server::StepNumbers& step : plan.steps) {
    CHECK(std::isfinite(step.denominator) && step.denominator != 0) << step.denominator;
    for (const double weight : step.rollout_weights) CHECK(std::isfinite(weight)) << weight;
  }
}

std::vector<v1::GroupPart> Parts(const Stream& stream) {
  std::vector<v1::GroupPart> parts(1);
  *parts[0].mutable_update() = stream.header;
  for (const v1::PromptGroup& group : stream.groups) *parts.emplace_back().mutable_group() = group;
  parts.emplace_back().mutable_end()->set_num_groups(stream.end_groups);
  parts.back().mutable_end()->set_num_rollouts(stream.end_rollouts);
  return parts;
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds = {JoinAll(Parts(Stream()))};
  for (const char* mode : {"gspo", "cispo", "cross_entropy", "importance_sampling", "gpg"}) {
    Stream stream;
    stream.header.mutable_loss()->set_loss_mode(mode);
    stream.header.mutable_loss()->set_loss_agg_mode("seq-mean-token-mean");
    stream.header.set_ppo_epochs(2);
    stream.header.set_ppo_mini_batch_size(1);
    stream.header.set_shuffle(true);
    seeds.push_back(JoinAll(Parts(stream)));
  }
  // Rollouts that follow their group, and a call of the other kind.
  std::vector<v1::GroupPart> parts = Parts(Stream());
  v1::GroupPart more;
  more.mutable_more()->set_uid("a");
  *more.mutable_more()->add_rollouts() = GoodRollout("late");
  parts.insert(parts.begin() + 2, more);
  parts.back().mutable_end()->set_num_rollouts(5);
  seeds.push_back(JoinAll(parts));
  Stream plain;
  for (v1::PromptGroup& group : plain.groups) {
    for (v1::Rollout& rollout : *group.mutable_rollouts()) {
      const std::string tokens = rollout.response_tokens(), id = rollout.rollout_id();
      rollout.Clear();
      rollout.set_rollout_id(id);
      rollout.set_response_tokens(tokens);
    }
  }
  std::vector<v1::GroupPart> log_prob = Parts(plain);
  log_prob[0].mutable_log_prob()->mutable_request()->set_request_id("run/2");
  log_prob[0].mutable_log_prob()->set_temperature(1);
  seeds.push_back(JoinAll(log_prob));
  return seeds;
}

}  // namespace stemma::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return stemma::fuzz::MutateMessages(stemma::v1::GroupPart::default_instance(), data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stemma;
  static const v1::RunConfig run = fuzz::SmallRun();
  static const ModelConfig model = SmallLlama();
  static const server::PlanFunction plan = server::MakePlanFunction(model);
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  for (const auto kind :
       {TrainingRequest::Kind::kUpdate, TrainingRequest::Kind::kVerify, TrainingRequest::Kind::kLogProb}) {
    const auto request = fuzz::Receive(kind, input, run.limits(), model);
    if (!request.ok()) continue;
    fuzz::CheckAccepted(**request, run.limits(), model);
    const auto planned = plan(**request, run, server::DefaultRates(RunDtype::kFp32, 1, "cpu"), {});
    if (planned.ok()) fuzz::CheckPlanned(**request, *planned);
  }
  return 0;
}
