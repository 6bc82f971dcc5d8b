#include "server/protocol/step_protocol.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/mesh.h"
#include "common/base/weights_digest_text.h"
#include "glog/logging.h"
#include "server/protocol/answers.h"
#include "server/protocol/checkpoint_rules.h"
#include "server/protocol/gradient_problem.h"
#include "server/protocol/rank_parts.h"
#include "server/protocol/step_messages.h"
#include "server/protocol/step_prepares.h"
#include "server/protocol/step_results.h"
#include "server/protocol/step_trace.h"
#include "server/protocol/vote_merge.h"
#include "server/protocol/worker_messages.h"

namespace stemma::server {
namespace {

using internal::v1::StepKey;

constexpr int kSkippedOfRow = 4096;  // so that a row stays at some MB

// Whether an earlier attempt gave the record's step k its result.
bool HasResult(const UpdateRecord& record) {
  return record.again || static_cast<uint32_t>(record.result.steps_size()) > record.k;
}

// Says which step of several it is, and what stays: whoever sends all of them again trains on some twice.
absl::Status NonfiniteError(const UpdateRecord& record, const std::string& problem) {
  const uint32_t steps = record.plan.num_steps(), applied = record.status.steps_applied();
  const std::string which = steps == 1 ? "" : absl::StrCat("step ", record.k + 1, " of ", steps, ": ");
  const std::string stays = applied == 0 ? "" : absl::StrCat(", ", applied, " of ", steps, " steps stay applied");
  return MakeError(Reason::kNonfiniteGradient,
                   absl::StrCat(which, problem, "; nothing of this step was applied", stays));
}

}  // namespace

absl::Status PlanMisfit(const std::string& problem) {
  return MakeError(Reason::kAttemptsExhausted,
                   absl::StrCat("a worker with less memory has come: ", problem,
                                "; nothing was applied; the same request, sent again, is planned for it"));
}

void StepProtocol::Ignore(const std::string& what) {
  p_.out.AddReason(absl::StrCat("ignored: ", what, "; ", ++ignored_, " such messages so far"));
}

void StepProtocol::Start(UpdateRecord& record) {
  CHECK_EQ(record.lineage, p_.lineage.name()) << record.id;
  // Then it was as expected. A step that needs no rank has a result and no decision.
  const bool begun = record.again || record.result.steps_size() > 0 || p_.history.FindDecision(record.id, 0) != nullptr;
  if (absl::Status status = p_.lineage.CheckExpected(record.request->header(), p_.lineage.step());
      !begun && !status.ok()) {
    return p_.jobs.FinishUpdate(record, v1::FAILED, status);
  }
  const std::string problem = PlanProblem(record.plan.report, p_.options.model, p_.gang.config());
  if (!problem.empty()) {
    CHECK(!p_.history.replays()) << record.id << " was to be planned anew: " << problem;
    record.resumable = true;
    return p_.jobs.FinishUpdate(record, v1::FAILED, PlanMisfit(problem));
  }
  std::optional<ResultCheck> results;
  record.results.clear();
  if (record.request->update.return_log_probs()) results.emplace(record.request);
  p_.jobs.running().BeginUpdate(record.id, std::move(results));
  const auto num_groups = static_cast<uint32_t>(record.request->groups.size());
  const v1::Mesh& mesh = p_.gang.mesh();
  std::vector<std::vector<uint32_t>> groups =
      ForRanks(PayloadGroupsOfRanks(record.plan.plan, num_groups, DpSize(mesh)), mesh);
  for (uint32_t rank = 0; rank < groups.size(); ++rank) {
    p_.out.Add(SendPayloadAction{p_.gang.worker(rank).session, record.id, record.request, std::move(groups[rank])});
  }
  PrepareNext(record);
}

void StepProtocol::PrepareNext(UpdateRecord& record) {
  SkipEmpty(record);
  if (record.k < record.plan.num_steps()) return SendPrepare(record);
  CHECK(!record.again) << record.id << " has no step that was decided";
  p_.jobs.FinishUpdate(record, v1::DONE, absl::OkStatus());
}

// Passes the steps that need no rank. A request may have thousands of them, and each row is forced to disk while every
// other call waits: they share one.
void StepProtocol::SkipEmpty(UpdateRecord& record) {
  internal::v1::StepsSkipped row;
  for (; record.k < record.plan.num_steps() && !StepNeedsWorker(record.plan, record.k); ++record.k) {
    if (HasResult(record)) continue;
    if (row.results().empty()) {
      row.set_request_id(record.id);
      row.set_k(record.k);
    }
    v1::StepResult& result = *record.result.add_steps();
    result = ResultOf(p_, record, v1::StepResult::SKIPPED_EMPTY, std::nullopt);
    *row.add_results() = result;
    if (row.results_size() == kSkippedOfRow) p_.history.Skip(std::exchange(row, internal::v1::StepsSkipped()));
  }
  if (!row.results().empty()) p_.history.Skip(std::move(row));
}

void StepProtocol::SendPrepare(UpdateRecord& record) {
  std::vector<StepKey> keys;
  for (uint32_t rank = 0; rank < p_.gang.num_ranks(); ++rank) {
    StepKey& key = keys.emplace_back(p_.gang.KeyOf(rank));
    key.set_step(p_.lineage.weights_step() + 1);
    key.set_attempt(record.attempt);
    key.set_request_id(record.id);
    key.set_k(record.k);
  }
  const bool traced = IsTraced(record.request->update, record.k);
  std::vector<internal::v1::Prepare> prepares = PreparesOf(p_, keys.front(), *record.request, record.plan);
  for (uint32_t rank = 0; rank < prepares.size(); ++rank) {
    *prepares[rank].mutable_key() = keys[rank];
    if (traced) prepares[rank].set_trace_spans_max(TraceSpansMax(p_.gang.num_ranks()));
    p_.out.Send(p_.gang.worker(rank).session, std::move(prepares[rank]));
  }
  p_.jobs.running().Prepare(p_.out.now(), std::move(keys),
                            PrepareSeconds(record.plan, record.k, record.request->bytes));
  record.status.set_state(v1::PREPARING);
}

void StepProtocol::OnVote(uint32_t rank, const internal::v1::Vote& vote) {
  RunningJob& running = p_.jobs.running();
  if (running.TakeStopped(rank, vote.key())) return;
  if (!running.AwaitsVote(rank, vote.key())) {
    return Ignore(absl::StrCat("the worker's vote on ", StepText(vote.key()), ", which is over"));
  }
  if (const absl::Status checked = CheckVote(p_.gang.mesh(), p_.options.model, rank, vote); !checked.ok()) {
    return membership_->Breach(p_.gang.worker(rank).session, checked);
  }
  if (SendsTooManySpans(rank, vote.spans().spans_size())) return;
  if (running.AddVote(rank, vote)) Decide(p_.jobs.RunningUpdate(), MergeVotes(running.votes()));
}

uint32_t StepProtocol::SpansAsked() const {
  const UpdateRecord& record = p_.jobs.RunningUpdate();
  return IsTraced(record.request->update, record.k) ? TraceSpansMax(p_.gang.num_ranks()) : 0;
}

bool StepProtocol::SendsTooManySpans(uint32_t rank, int spans) {
  if (spans <= static_cast<int>(SpansAsked())) return false;
  membership_->Breach(p_.gang.worker(rank).session, absl::InvalidArgumentError(absl::StrCat(
                                                        spans, " spans of a step, ", SpansAsked(), " were asked for")));
  return true;
}

// `vote`: of all ranks.
void StepProtocol::Decide(UpdateRecord& record, const internal::v1::Vote& vote) {
  if (const internal::v1::KeptStep* step = p_.history.FindDecision(record.id, record.k)) {
    return Repeat(record, vote, step->decision());
  }
  // Whether log-probs are returned changes no weights: a gradient that is 0 by the loss would else be applied, and
  // momentum and weight decay with it.
  const bool empty = vote.empty() || record.plan.numbers(record.k).empty.no_gradient;
  if (vote.yes() && empty) return Commit(record, vote, v1::StepResult::SKIPPED_EMPTY);
  const std::string problem = GradientProblem(record.request->update.adam(), vote, p_.gang.config());
  if (!vote.yes() || !problem.empty()) return OnNoVote(record, vote, problem);
  Commit(record, vote, v1::StepResult::APPLIED);
}

// `problem`: of the gradient, where that is why the step is not applied.
void StepProtocol::OnNoVote(UpdateRecord& record, const internal::v1::Vote& vote, const std::string& problem) {
  const bool nonfinite = !problem.empty();
  if (nonfinite && record.request->header().on_nonfinite() == v1::SKIP) {
    p_.out.AddWarning(absl::StrCat(StepText(p_.jobs.running().key()), " is skipped: ", problem));
    return Commit(record, vote, v1::StepResult::SKIPPED_NONFINITE);
  }
  p_.jobs.AbortRunning();
  p_.jobs.FinishUpdate(record, v1::FAILED, nonfinite ? NonfiniteError(record, problem) : NoVoteError(vote));
}

// What was decided is applied, or the ranks' weights would not be the lineage's any more.
void StepProtocol::Repeat(UpdateRecord& record, const internal::v1::Vote& vote,
                          const internal::v1::StepCommitted& decided) {
  if (vote.yes() || decided.outcome() != v1::StepResult::APPLIED) {
    return SendApply(record, vote, {decided.outcome(), decided.clip()});
  }
  const std::string why = absl::StrCat("step ", decided.step(), " (request ", record.id, ", k ", decided.k(),
                                       ") was decided and cannot be computed again: ", WorkerText(vote.message()));
  FailAgain(why);
}

// Other workers may do what these could not. Where they cannot either, an operator has to look.
void StepProtocol::FailAgain(const std::string& why) {
  if (p_.history.replays() && ++failures_again_ >= p_.options.attempts_max) {
    return membership_->Stop(MakeError(Reason::kDiverged, why));
  }
  membership_->GiveUp(why);
}

void StepProtocol::Commit(UpdateRecord& record, const internal::v1::Vote& vote, v1::StepResult::Outcome outcome) {
  const StepDecision decision = DecideStep(record.request->update.adam(), vote, outcome);
  if (p_.history.replays()) {
    internal::v1::StepCommitted row;
    row.set_request_id(record.id);
    row.set_k(record.k);
    row.set_step(p_.lineage.step() + (outcome == v1::StepResult::APPLIED ? 1 : 0));
    row.set_outcome(outcome);
    row.set_clip(decision.clip);
    p_.history.Commit(std::move(row));
  }
  SendApply(record, vote, decision);
}

void StepProtocol::SendApply(UpdateRecord& record, const internal::v1::Vote& vote, const StepDecision& decision) {
  RunningJob& running = p_.jobs.running();
  internal::v1::Apply apply = MakeApply(running.key(), record.request->update.adam(), record.plan, decision);
  const bool applies = decision.outcome == v1::StepResult::APPLIED;
  apply.set_digest(applies && (p_.history.replays() || p_.gang.num_ranks() > 1));
  for (uint32_t rank = 0; rank < p_.gang.num_ranks(); ++rank) {
    *apply.mutable_key() = running.votes()[rank].key();
    p_.out.Send(p_.gang.worker(rank).session, apply);
  }
  running.Commit(vote, decision.outcome, ApplySeconds(record.plan, record.k));
  record.status.set_state(v1::COMMITTED);
}

void StepProtocol::OnApplied(uint32_t rank, const internal::v1::Applied& applied) {
  RunningJob& running = p_.jobs.running();
  if (!running.AwaitsApplied(rank, applied.key())) {
    return Ignore(absl::StrCat("the worker's report that it applied ", StepText(applied.key()), ", which is over"));
  }
  if (SendsTooManySpans(rank, running.votes()[rank].spans().spans_size() + applied.spans().spans_size())) return;
  UpdateRecord& record = p_.jobs.RunningUpdate();
  // The other ranks have applied the step, or are about to: what one has ruined is of no use on any of them.
  if (!applied.nonfinite().empty()) return membership_->LoseWeights(record, WorkerText(applied.nonfinite()));
  if (running.AddApplied(rank, applied)) Complete(record);
}

std::optional<std::string> StepProtocol::DigestOfRanks() {
  const std::span<const internal::v1::Applied> applied = p_.jobs.running().applied();
  for (uint32_t rank = 1; rank < applied.size(); ++rank) {
    if (applied[rank].weights_digest() == applied[0].weights_digest()) continue;
    const std::string why = absl::StrCat("after ", StepText(p_.jobs.running().key()), " the weights of rank ", rank,
                                         " are not those of rank 0");
    FailAgain(why);
    return std::nullopt;
  }
  return applied[0].weights_digest();
}

// Takes the step that every rank has applied.
void StepProtocol::Complete(UpdateRecord& record) {
  const std::optional<std::string> digest = DigestOfRanks();
  if (!digest) return;
  const internal::v1::KeptStep* before = p_.history.FindDecision(record.id, record.k);
  if (before != nullptr && before->applied()) {
    CompleteAgain(record, *before, *digest);
  } else {
    CompleteFirst(record, *digest);
  }
  record.status.set_state(v1::APPLIED);
  ++record.k;
  if (record.again) return GoOnAgain(record);
  GoOn(record);
}

// Other bits than before, as of another mesh or device, are other weights: they get another name, and the journal their
// digest.
void StepProtocol::CompleteAgain(UpdateRecord& record, const internal::v1::KeptStep& before,
                                 const std::string& digest) {
  if (p_.jobs.running().outcome() != v1::StepResult::APPLIED) return;
  p_.lineage.CountStepAgain();
  if (WeightsDiffer(before.weights_digest(), digest)) {
    internal::v1::StepApplied row;
    row.set_request_id(record.id);
    row.set_k(record.k);
    row.set_weights_digest(digest);
    membership_->Diverge(absl::StrCat("step ", p_.lineage.weights_step(), ", computed again,"));
    p_.history.Apply(std::move(row));
  }
  if (!p_.lineage.behind()) membership_->CatchUp();
}

void StepProtocol::CompleteFirst(UpdateRecord& record, const std::string& digest) {
  failures_again_ = 0;
  const v1::StepResult::Outcome outcome = p_.jobs.running().outcome();
  double apply_s = 0;
  for (const internal::v1::Applied& applied : p_.jobs.running().applied())
    apply_s = std::max(apply_s, applied.apply_s());
  if (outcome == v1::StepResult::APPLIED) {
    p_.lineage.CountStep();
    record.status.set_steps_applied(record.status.steps_applied() + 1);
    record.last_step = p_.lineage.step();
    Measure(record);
  }
  AddResult(record, outcome, apply_s, digest);
  // A lost worker repeats the steps that were skipped before its own, so only an applied step renews the attempts.
  if (outcome == v1::StepResult::APPLIED) record.attempt = 1;
}

// Ends with the last step that was decided.
void StepProtocol::GoOnAgain(UpdateRecord& record) {
  const internal::v1::KeptRequest* kept = FindKept(p_.history.state(), record.id);
  CHECK(kept != nullptr) << record.id;
  const bool more = !kept->steps().empty() && kept->steps().rbegin()->decision().k() >= record.k;
  if (more && !membership_->draining()) return PrepareNext(record);
  p_.jobs.EndAgain();
}

// Begins the next step, unless the request or the server is to end.
void StepProtocol::GoOn(UpdateRecord& record) {
  const bool more = record.k < record.plan.num_steps();
  if (more && record.cancel_requested && !membership_->IsDecided(record) && !record.computes_again()) {
    p_.jobs.CancelUpdate(record);
  } else if (more && membership_->draining()) {
    p_.jobs.LeaveUpdate(record, DrainingError(absl::StrCat(" after step ", record.k, " of ", record.plan.num_steps(),
                                                           " of this request")));
  } else {
    PrepareNext(record);
  }
}

// The applied step's phases calibrate the plans of requests to come: each copy's, for each has done other work.
void StepProtocol::Measure(const UpdateRecord& record) {
  const RunningJob& running = p_.jobs.running();
  const size_t ranks = RanksOfCopy(p_.gang.mesh()), stages = PpSize(p_.gang.mesh());
  bool save = false;
  for (size_t first = 0; first < running.votes().size(); first += ranks) {
    const PhaseWork* work = record.plan.phase_work(record.k, first / ranks);
    if (work == nullptr) return;
    save |= p_.calibration.Add(SampleOfCopy(*work, stages, std::span(running.votes()).subspan(first, ranks),
                                            std::span(running.applied()).subspan(first, ranks)));
  }
  if (save) membership_->SaveCalibration();
}

// `apply_s`: of the slowest rank.
void StepProtocol::AddResult(UpdateRecord& record, v1::StepResult::Outcome outcome, double apply_s,
                             const std::string& digest) {
  if (HasResult(record)) return;
  v1::StepResult& result = *record.result.add_steps();
  result = ResultOf(p_, record, outcome, apply_s);
  internal::v1::StepApplied row;
  row.set_request_id(record.id);
  row.set_k(record.k);
  row.set_weights_digest(digest);
  *row.mutable_result() = result;
  row.mutable_result()->clear_trace();
  p_.history.Apply(std::move(row));
}

void StepProtocol::OnRefused(uint32_t rank, const internal::v1::Refused& refused) {
  const std::string why = WorkerText(refused.message());
  p_.out.AddWarning(absl::StrCat("the worker refused ", StepText(refused.key()), ": ", why));
  RunningJob& running = p_.jobs.running();
  const SessionId session = p_.gang.worker(rank).session;
  if (running.TakeStopped(rank, refused.key())) return EndRefusedPrepare(session, why);
  if (!running.Attempts(rank, refused.key())) return;
  // We cannot know whether the step was applied, so we drop this worker and let recovery decide.
  if (running.committed()) {
    return membership_->Close(session, absl::AbortedError("it refused an Apply"),
                              absl::StrCat("it refused an Apply: ", why));
  }
  UpdateRecord& record = p_.jobs.RunningUpdate();
  if (record.again || membership_->IsDecided(record) || p_.history.FindDecision(record.id, record.k) != nullptr) {
    return FailAgain(absl::StrCat("a rank refuses a step that was decided: ", why));
  }
  p_.jobs.FinishUpdate(record, v1::FAILED,
                       MakeError(Reason::kInternal, absl::StrCat("the worker refused the step: ", why)));
  EndRefusedPrepare(session, why);
}

// Ends a rank that refused: the others wait for it in the step's first collective, and nothing but their end ends that.
void StepProtocol::EndRefusedPrepare(SessionId session, const std::string& why) {
  if (p_.gang.num_ranks() == 1) return;
  membership_->Close(session, absl::AbortedError("it refused a Prepare"), absl::StrCat("it refused a Prepare: ", why));
}

}  // namespace stemma::server
