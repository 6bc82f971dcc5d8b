#include "tests/testing/fake_worker/fake_engine.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/arrays.h"
#include "common/base/clock.h"
#include "common/base/mesh.h"

namespace stemma::testing {
namespace {

constexpr int kCrashExit = 9;

v1::GroupResult ResultOf(const v1::PromptGroup& group) {
  v1::GroupResult result;
  result.set_uid(group.uid());
  result.set_dtype(v1::FLOAT32);
  for (const v1::Rollout& rollout : group.rollouts()) {
    std::vector<float> log_probs;
    for (int32_t token : TokenArray(rollout.response_tokens()).ToVector())
      log_probs.push_back(static_cast<float>(-token));
    v1::RolloutResult& to = *result.add_rollouts();
    to.set_rollout_id(rollout.rollout_id());
    to.set_log_probs(PackArray(log_probs));
  }
  return result;
}

absl::Status RankLost() { return absl::UnavailableError("told that rank 1 has gone"); }

void SendResults(const std::string& id, const std::map<uint32_t, v1::PromptGroup>& groups, const EngineHooks& hooks) {
  for (const auto& [index, group] : groups) {
    internal::v1::ResultChunk chunk;
    chunk.set_id(id);
    *chunk.mutable_group() = ResultOf(group);
    hooks.results(std::move(chunk));
  }
}

void SayThatItRuns(const EngineHooks& hooks) {
  internal::v1::Heartbeat heartbeat;
  heartbeat.set_phase("suffix");
  hooks.progress(heartbeat);
}

[[noreturn]] void StandStill() {
  while (true) RealClock().Sleep(absl::Seconds(1));
}

void WaitUntilCancelled(const EngineHooks& hooks) {
  SayThatItRuns(hooks);
  while (!hooks.cancelled()) RealClock().Sleep(absl::Milliseconds(5));
}

}  // namespace

void FakeEngine::WaitForGate(const EngineHooks& hooks) const {
  SayThatItRuns(hooks);
  while (!hooks.cancelled() && access(gate_.c_str(), F_OK) != 0) RealClock().Sleep(absl::Milliseconds(5));
}

FakeEngine::FakeEngine(const internal::v1::Configure& configure, const std::string& incarnation)
    : fence_({.epoch = configure.epoch(),
              .generation = configure.generation(),
              .incarnation = incarnation,
              .step = configure.step()}),
      gate_(configure.data_directory() + "/gate") {
  *ready_.mutable_config() = configure.config();
  ready_.set_model_digest("fake");
}

absl::Status FakeEngine::AddPayload(internal::v1::PayloadChunk chunk) {
  Payload& payload = payloads_[chunk.id()];
  if (chunk.group_indices_size() != chunk.groups_size()) return absl::InvalidArgumentError("groups without indices");
  for (int i = 0; i < chunk.groups_size(); ++i) {
    v1::PromptGroup& group = *chunk.mutable_groups(i);
    const auto [place, begun] = payload.groups.try_emplace(chunk.group_indices(i));
    if (begun) {
      place->second = std::move(group);
    } else {
      place->second.mutable_rollouts()->MergeFrom(group.rollouts());
    }
  }
  payload.complete = chunk.last();
  return absl::OkStatus();
}

const FakeEngine::Payload* FakeEngine::Find(const std::string& id) const {
  const auto it = payloads_.find(id);
  return it == payloads_.end() || !it->second.complete ? nullptr : &it->second;
}

absl::StatusOr<internal::v1::Vote> FakeEngine::Prepare(const internal::v1::Prepare& prepare, const EngineHooks& hooks) {
  if (absl::Status status = fence_.CheckPrepare(prepare.key()); !status.ok()) return status;
  const Payload* payload = Find(prepare.key().request_id());
  if (payload == nullptr) return absl::NotFoundError("no payload");
  const bool any = prepare.plan().groups_size() > 0;  // a rank may have none
  const std::string uid = any ? payload->groups.at(prepare.plan().groups(0)).uid() : "";
  if (absl::StartsWith(uid, "lost")) return RankLost();
  if (absl::StartsWith(uid, "refuse")) return absl::InternalError("told to refuse");
  if (absl::StartsWith(uid, "crash")) _exit(kCrashExit);
  if (absl::StartsWith(uid, "stuck")) StandStill();
  crash_in_apply_ = absl::StartsWith(uid, "stay");
  ruin_in_apply_ = absl::StartsWith(uid, "ruin");
  lose_in_apply_ = absl::StartsWith(uid, "parted");
  fence_.OnPrepare(prepare.key());
  internal::v1::Vote vote;
  *vote.mutable_key() = prepare.key();
  vote.set_yes(true);
  vote.set_grad_norm_squared(1);
  if (absl::StartsWith(uid, "hang")) {
    WaitUntilCancelled(hooks);
    vote.set_yes(false);
    vote.set_no_reason(internal::v1::CANCELLED);
  } else if (absl::StartsWith(uid, "gate")) {
    WaitForGate(hooks);
  } else if (absl::StartsWith(uid, "nonfinite")) {
    vote.set_yes(false);
    vote.set_no_reason(internal::v1::NONFINITE);
    vote.set_message("told to");
  } else if (prepare.header().return_log_probs()) {
    SendResults(prepare.key().request_id(), payload->groups, hooks);
  }
  vote.mutable_sums()->set_policy_loss(0.5);
  vote.mutable_sums()->set_loss_tokens(1);
  fence_.OnVote(prepare.key());
  return vote;
}

absl::StatusOr<internal::v1::Applied> FakeEngine::Apply(const internal::v1::Apply& apply) {
  if (absl::Status status = fence_.CheckApply(apply.key()); !status.ok()) return status;
  if (crash_in_apply_) _exit(kCrashExit);
  if (lose_in_apply_) return RankLost();
  fence_.OnApplied(apply.key(), apply.discard());
  internal::v1::Applied applied;
  *applied.mutable_key() = apply.key();
  if (ruin_in_apply_) applied.set_nonfinite("layers.0.qkv");
  return applied;
}

void FakeEngine::Abort(const internal::v1::StepKey& key) { fence_.OnAbort(key); }

absl::Status FakeEngine::LogProb(const internal::v1::LogProb& log_prob, const EngineHooks& hooks) {
  const Payload* payload = Find(log_prob.id());
  if (payload == nullptr) return absl::NotFoundError("no payload");
  const std::string uid = payload->groups.empty() ? "" : payload->groups.begin()->second.uid();
  if (absl::StartsWith(uid, "lost")) return RankLost();
  if (absl::StartsWith(uid, "hang")) {
    WaitUntilCancelled(hooks);
    return absl::CancelledError("cancelled");
  }
  SendResults(log_prob.id(), payload->groups, hooks);
  return absl::OkStatus();
}

absl::StatusOr<internal::v1::VerifyDone> FakeEngine::Verify(const internal::v1::Verify& verify,
                                                            const EngineHooks& hooks) {
  const Payload* payload = Find(verify.id());
  if (payload == nullptr) return absl::NotFoundError("no payload");
  const std::string uid = payload->groups.empty() ? "" : payload->groups.begin()->second.uid();
  if (absl::StartsWith(uid, "lost")) return RankLost();
  internal::v1::VerifyDone done;
  done.set_id(verify.id());
  if (absl::StartsWith(uid, "hang")) {
    WaitUntilCancelled(hooks);
    done.mutable_reuse()->set_no_reason(internal::v1::CANCELLED);
    return done;
  }
  for (const bool dense : {false, true}) {
    internal::v1::Vote& vote = dense ? *done.mutable_dense() : *done.mutable_reuse();
    vote.set_yes(true);
    vote.set_grad_norm_squared(1);
    vote.mutable_sums()->set_policy_loss(0.5);
    EngineHooks of_run = hooks;
    of_run.results = [&](internal::v1::ResultChunk chunk) {
      chunk.set_dense(dense);
      hooks.results(std::move(chunk));
    };
    SendResults(verify.id(), payload->groups, of_run);
  }
  internal::v1::GradientError& error = *done.add_gradients();
  error.set_name("norm");
  error.set_error_squared(0.25);
  error.set_dense_squared(1);
  return done;
}

absl::StatusOr<uint64_t> FakeEngine::Export(const internal::v1::Export& request) {
  if (request.name() == "stuck") StandStill();
  if (request.name() == "lost") return RankLost();
  if (request.name() == "taken") return absl::AlreadyExistsError("taken exists: choose another name");
  return 7;
}

absl::Status FakeEngine::Save(const internal::v1::Save& request, const SaveAnswers& answers) {
  if (request.folder() == "lost") return RankLost();
  if (request.folder() == "refuse") return absl::FailedPreconditionError("told to refuse");
  internal::v1::SaveStaged staged;
  staged.set_id(request.id());
  staged.set_staged_bytes(7);
  answers.staged(std::move(staged));
  // As the real one: by another thread, while this one may do other work.
  writer_ = std::make_unique<Writer>([done = answers.done, id = request.id()] {
    internal::v1::SaveDone answer;
    answer.set_id(id);
    answer.set_weights_digest("fake");
    done(std::move(answer));
  });
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Engine>> CreateFakeEngine(const internal::v1::Configure& configure,
                                                         const WorkerIdentity& identity, const TellStore& tell) {
  if (NumRanks(configure.config().mesh()) > 1 && configure.rank() == 0) {
    internal::v1::StoreOpened opened;
    opened.set_address("127.0.0.1:1");
    tell(opened);
  }
  return std::make_unique<FakeEngine>(configure, identity.incarnation);
}

}  // namespace stemma::testing
