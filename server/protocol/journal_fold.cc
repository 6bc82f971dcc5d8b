#include "server/protocol/journal_fold.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/admission/log_prob_sources.h"
#include "common/base/request_state.h"
#include "common/base/status_macros.h"
#include "server/protocol/checkpoint_rules.h"
#include "server/protocol/lineage.h"
#include "server/protocol/step_metrics.h"
#include "server/protocol/step_warnings.h"

namespace stemma::server {
namespace {

using internal::v1::JournalRow;
using internal::v1::JournalState;
using internal::v1::KeptRequest;
using internal::v1::KeptStep;
using internal::v1::KnownCheckpoint;
using internal::v1::KnownRequest;
using Files = std::vector<std::string>;

absl::Status Clash(const std::string& why) {
  return absl::DataLossError(absl::StrCat("the journal contradicts itself: ", why));
}

template <typename List>
auto* FindLast(List& list, const std::string& id) {
  const auto it = std::find_if(list.rbegin(), list.rend(), [&](const auto& r) { return r.request_id() == id; });
  return it == list.rend() ? nullptr : &*it;
}

// Lets go of the kept requests that are `useless`; the others stay in their order.
template <typename Useless>
void DropKept(const Useless& useless, JournalState& state, Files& dropped) {
  auto& kept = *state.mutable_kept();
  int left = 0;
  for (int i = 0; i < kept.size(); ++i) {
    if (useless(kept[i])) {
      dropped.push_back(kept[i].spool().name());
    } else {
      kept.SwapElements(left++, i);
    }
  }
  kept.DeleteSubrange(left, kept.size() - left);
}

// What is kept of a request that ended without a step is of no use to anybody.
void CloseKept(JournalState& state, const std::string& id, Files& dropped) {
  for (int i = state.kept_size() - 1; i >= 0; --i) {
    KeptRequest& kept = *state.mutable_kept(i);
    if (kept.request_id() != id || !kept.open()) continue;
    kept.set_open(false);
    if (LastStep(kept) > 0) return;
    dropped.push_back(kept.spool().name());
    return state.mutable_kept()->DeleteSubrange(i, 1);
  }
}

absl::Status Fold(const internal::v1::ServerStarted& row, JournalState& state) {
  if (row.epoch() <= state.epoch()) return Clash(absl::StrCat("epoch ", row.epoch(), " follows ", state.epoch()));
  state.set_epoch(row.epoch());
  return absl::OkStatus();
}

void NameLineageOfRequest(const std::string& name, KnownRequest& request) {
  request.set_lineage(name);
  request.mutable_status()->set_lineage(name);
  if (request.has_result()) request.mutable_result()->set_lineage(name);
  if (request.status().has_result()) request.mutable_status()->mutable_result()->set_lineage(name);
}

void LoseRequests(const internal::v1::LostWeights& lost, const std::string& next, JournalState& state,
                  KnownRequests& requests, Files& dropped) {
  const uint64_t shared = SharedSteps(state, {lost.checkpoint(), lost.checkpoint_step()});
  for (KnownRequest& request : *state.mutable_requests()) {
    if (request.lineage() != lost.lineage()) continue;
    if (SurvivesLoss(IsFinal(request.status().state()), request.last_step(), shared)) {
      NameLineageOfRequest(next, request);
      continue;
    }
    request.set_lost_step(lost.step());
    if (!IsFinal(request.status().state())) requests.End(v1::ROLLED_BACK, request);
    request.mutable_status()->clear_result();
    request.clear_result();
  }
  *state.add_lost() = lost;
  state.mutable_lost()->rbegin()->mutable_former_lineages()->Swap(state.mutable_former_lineages());
  if (state.lost_size() > kLostLineagesMax) state.mutable_lost()->DeleteSubrange(0, 1);
  DropKept([&](const KeptRequest& kept) { return kept.open() || LastStep(kept) > shared; }, state, dropped);
}

// The checkpoint, and those that led to it, are the new lineage's.
absl::Status BeginWith(const std::string& checkpoint, uint64_t step, const std::string& lineage, JournalState& state) {
  state.set_step(step);
  state.set_begins_with_checkpoint(!checkpoint.empty() && step == 0);
  if (checkpoint.empty()) {
    state.clear_model_digest();
    state.clear_model_dtype();
    state.clear_model_config();
    return absl::OkStatus();
  }
  const KnownCheckpoint* base = FindCheckpoint(state, checkpoint);
  if (base == nullptr || base->step() != step)
    return Clash(absl::StrCat("a lineage begins with checkpoint ", checkpoint, ", which is not there"));
  const std::string before = base->lineage();
  for (KnownCheckpoint& known : *state.mutable_checkpoints()) {
    if (known.lineage() == before && known.step() <= step) known.set_lineage(lineage);
  }
  return absl::OkStatus();
}

absl::Status Fold(const internal::v1::LineageBegun& row, JournalState& state, KnownRequests& requests, Files& dropped) {
  if (row.has_lost()) {
    if (row.lost().lineage() != state.lineage())
      return Clash(absl::StrCat("lineage ", row.lost().lineage(), " is lost, and was not there"));
    LoseRequests(row.lost(), row.name(), state, requests, dropped);
    RETURN_IF_ERROR(BeginWith(row.lost().checkpoint(), row.lost().checkpoint_step(), row.name(), state));
  } else if (state.lineage().empty()) {
    RETURN_IF_ERROR(BeginWith(row.checkpoint(), row.step(), row.name(), state));
  } else {
    state.add_former_lineages(state.lineage());
    if (state.former_lineages_size() > kFormerLineagesMax) state.mutable_former_lineages()->DeleteSubrange(0, 1);
    for (KnownRequest& request : *state.mutable_requests()) {
      if (request.lineage() == state.lineage()) NameLineageOfRequest(row.name(), request);
    }
    for (KnownCheckpoint& known : *state.mutable_checkpoints()) {
      if (known.lineage() == state.lineage()) known.set_lineage(row.name());
    }
  }
  state.set_lineage(row.name());
  state.set_weight_version(row.weight_version());
  return absl::OkStatus();
}

absl::Status Fold(const internal::v1::RequestAccepted& row, JournalState& state, KnownRequests& requests) {
  if (requests.FindOpen(row.request_id()) != nullptr)
    return Clash(absl::StrCat("request ", row.request_id(), " is accepted twice"));
  KnownRequest& request = requests.Add(row.request_id());  // in the place of its earlier, resumable end
  request.set_digest(row.digest());
  request.set_lineage(state.lineage());
  request.set_bytes(row.bytes());
  v1::RequestStatus& status = *request.mutable_status();
  status.set_request_id(row.request_id());
  status.set_state(v1::ACCEPTED);
  status.set_steps_total(row.steps_total());
  status.set_lineage(state.lineage());
  *request.mutable_result() = row.begun();
  if (!row.has_spool()) return absl::OkStatus();
  KeptRequest& kept = *state.add_kept();
  kept.set_request_id(row.request_id());
  *kept.mutable_spool() = row.spool();
  kept.set_open(true);
  for (std::string& name : CheckpointsReadBy(row.begun().effective())) *kept.add_checkpoints() = std::move(name);
  return absl::OkStatus();
}

absl::Status Fold(const internal::v1::StepCommitted& row, JournalState& state) {
  KeptRequest* kept = FindLast(*state.mutable_kept(), row.request_id());
  if (kept == nullptr || !kept->open())
    return Clash(absl::StrCat("a step of ", row.request_id(), " is committed, which is not open"));
  const bool applies = row.outcome() == v1::StepResult::APPLIED;
  if (row.step() != state.step() + (applies ? 1 : 0)) {
    return Clash(absl::StrCat("step ", row.step(), " is committed after step ", state.step()));
  }
  state.set_step(row.step());
  *kept->add_steps()->mutable_decision() = row;
  return absl::OkStatus();
}

// Adds the results of steps k, k + 1, ..., in the place of those from step k on: what was skipped is skipped again
// after a loss.
template <typename Results>
void AddResults(uint32_t k, const Results& results, KnownRequest& request) {
  auto& steps = *request.mutable_result()->mutable_steps();
  while (static_cast<uint32_t>(steps.size()) > k) steps.RemoveLast();
  steps.Add(results.begin(), results.end());
  request.mutable_status()->set_state(v1::APPLIED);
}

// The step counts when it is committed; without spool, where nothing is committed, when it is applied.
absl::Status Fold(const internal::v1::StepApplied& row, JournalState& state, KnownRequests& requests, Files& dropped) {
  KeptRequest* kept = FindLast(*state.mutable_kept(), row.request_id());
  KeptStep* step = kept == nullptr ? nullptr : FindStep(*kept, row.k());
  if (step != nullptr) {
    step->set_applied(true);
    step->set_weights_digest(row.weights_digest());
  }
  if (!row.has_result()) return absl::OkStatus();
  KnownRequest* request = requests.FindOpen(row.request_id());
  if (request == nullptr) return Clash(absl::StrCat("a step of ", row.request_id(), " is applied, which is not open"));
  const v1::StepResult& result = row.result();
  if (result.outcome() == v1::StepResult::APPLIED) {
    if (kept != nullptr && step == nullptr)
      return Clash(absl::StrCat("a step of ", row.request_id(), " is applied, which was not committed"));
    request->mutable_status()->set_steps_applied(request->status().steps_applied() + 1);
    if (step == nullptr) {
      state.set_step(state.step() + 1);
      // Steps that are not kept cannot be computed again, nor can those before them be brought up to them.
      DropKept([](const KeptRequest& k) { return !k.open(); }, state, dropped);
    }
    request->set_last_step(state.step());
    state.set_weight_version(result.weight_version());
  }
  AddResults(row.k(), std::span(&result, 1), *request);
  return absl::OkStatus();
}

absl::Status Fold(const internal::v1::StepsSkipped& row, KnownRequests& requests) {
  KnownRequest* request = requests.FindOpen(row.request_id());
  if (request == nullptr) return Clash(absl::StrCat("steps of ", row.request_id(), " are skipped, which is not open"));
  const bool any_runs = std::any_of(row.results().begin(), row.results().end(), [](const v1::StepResult& result) {
    return result.outcome() != v1::StepResult::SKIPPED_EMPTY;
  });
  if (any_runs)
    return Clash(absl::StrCat("steps of ", row.request_id(), " are skipped that have something to compute"));
  AddResults(row.k(), row.results(), *request);
  return absl::OkStatus();
}

absl::Status Fold(const internal::v1::StepUndone& row, JournalState& state) {
  KeptRequest* kept = FindLast(*state.mutable_kept(), row.request_id());
  const bool last = kept != nullptr && kept->steps_size() > 0 && !kept->steps().rbegin()->applied() &&
                    kept->steps().rbegin()->decision().k() == row.k();
  if (!last) return Clash(absl::StrCat("a step of ", row.request_id(), " is undone, which is not the last one"));
  if (kept->steps().rbegin()->decision().outcome() == v1::StepResult::APPLIED) state.set_step(state.step() - 1);
  kept->mutable_steps()->RemoveLast();
  return absl::OkStatus();
}

absl::Status Fold(const internal::v1::RequestFinished& row, JournalState& state, KnownRequests& requests,
                  Files& dropped) {
  KnownRequest* request = requests.FindOpen(row.request_id());
  if (request == nullptr) return Clash(absl::StrCat("request ", row.request_id(), " ends, which is not open"));
  v1::RequestStatus& status = *request->mutable_status();
  requests.End(row.state(), *request);
  if (row.has_failure()) *status.mutable_failure() = row.failure();
  if (row.state() == v1::DONE) {
    CompleteResult(*request->mutable_result());
    *status.mutable_result() = std::move(*request->mutable_result());
  }
  request->clear_result();
  request->set_resumable(row.resumable());
  CloseKept(state, row.request_id(), dropped);
  return absl::OkStatus();
}

// Kept requests are of use back to the checkpoint before the newest: where the newest is found damaged, nothing is
// lost. An older one may be added, too: found on the disk where it was copied to.
absl::Status Fold(const internal::v1::CheckpointSaved& row, JournalState& state, Files& dropped) {
  const KnownCheckpoint& saved = row.checkpoint();
  if (FindCheckpoint(state, saved.name()) != nullptr)
    return Clash(absl::StrCat("checkpoint ", saved.name(), " is saved twice"));
  const KnownCheckpoint* before = NewestSound(state);
  const uint64_t needless =
      saved.lineage() == state.lineage() && before != nullptr ? std::min(before->step(), saved.step()) : 0;
  DropKept([&](const KeptRequest& kept) { return !kept.open() && LastStep(kept) <= needless; }, state, dropped);
  *state.add_checkpoints() = saved;
  return absl::OkStatus();
}

absl::Status Fold(const internal::v1::CheckpointChanged& row, JournalState& state) {
  auto* known = const_cast<KnownCheckpoint*>(FindCheckpoint(state, row.name()));  // of the state, which may change
  if (known == nullptr) return Clash(absl::StrCat("checkpoint ", row.name(), " changes, which is not there"));
  if (row.has_pinned()) known->set_pinned(row.pinned());
  if (row.has_damage()) known->set_damage(row.damage());
  if (row.has_loaded_dtype()) known->set_loaded_dtype(row.loaded_dtype());
  if (row.has_loaded_digest()) known->set_loaded_digest(row.loaded_digest());
  return absl::OkStatus();
}

absl::Status Fold(const internal::v1::CheckpointDropped& row, JournalState& state) {
  for (int i = 0; i < state.checkpoints_size(); ++i) {
    if (state.checkpoints(i).name() != row.name()) continue;
    state.mutable_checkpoints()->DeleteSubrange(i, 1);
    return absl::OkStatus();
  }
  return Clash(absl::StrCat("checkpoint ", row.name(), " is dropped, which is not there"));
}

}  // namespace

absl::Status FoldRow(const JournalRow& row, uint64_t requests_kept, JournalState& state, KnownRequests& requests,
                     Files& dropped) {
  switch (row.row_case()) {
    case JournalRow::kStarted:
      return Fold(row.started(), state);
    case JournalRow::kLineageBegun:
      RETURN_IF_ERROR(Fold(row.lineage_begun(), state, requests, dropped));
      requests.DropOldest(requests_kept);
      return absl::OkStatus();
    case JournalRow::kModelLoaded:
      state.set_model_digest(row.model_loaded().model_digest());
      state.set_model_dtype(row.model_loaded().dtype());
      state.set_model_config(row.model_loaded().config());
      return absl::OkStatus();
    case JournalRow::kAccepted:
      return Fold(row.accepted(), state, requests);
    case JournalRow::kCommitted:
      return Fold(row.committed(), state);
    case JournalRow::kApplied:
      return Fold(row.applied(), state, requests, dropped);
    case JournalRow::kUndone:
      return Fold(row.undone(), state);
    case JournalRow::kFinished:
      RETURN_IF_ERROR(Fold(row.finished(), state, requests, dropped));
      requests.DropOldest(requests_kept);
      return absl::OkStatus();
    case JournalRow::kSnapshot:
      state = row.snapshot();
      requests.Read();
      return absl::OkStatus();
    case JournalRow::kCheckpointSaved:
      return Fold(row.checkpoint_saved(), state, dropped);
    case JournalRow::kCheckpointChanged:
      return Fold(row.checkpoint_changed(), state);
    case JournalRow::kCheckpointDropped:
      return Fold(row.checkpoint_dropped(), state);
    case JournalRow::kSkipped:
      return Fold(row.skipped(), requests);
    case JournalRow::ROW_NOT_SET:
      break;
  }
  if (row.GetReflection()->GetUnknownFields(row).empty()) return Clash("a row says nothing");
  return absl::FailedPreconditionError(
      "is of a kind that this version does not know: start the version that wrote it, or a newer one");
}

absl::Status FoldRow(JournalRow&& row, uint64_t requests_kept, JournalState& state, KnownRequests& requests) {
  Files dropped;
  if (!row.has_snapshot()) return FoldRow(std::as_const(row), requests_kept, state, requests, dropped);
  state = std::move(*row.mutable_snapshot());
  requests.Read();
  return absl::OkStatus();
}

absl::Status FoldRow(const JournalRow& row, uint64_t requests_kept, JournalState& state) {
  KnownRequests requests(&state);
  Files dropped;
  return FoldRow(row, requests_kept, state, requests, dropped);
}

uint64_t AppliedSteps(const JournalState& state) {
  uint64_t decided = 0;
  for (const KeptRequest& kept : state.kept()) {
    for (const KeptStep& step : kept.steps())
      decided += !step.applied() && step.decision().outcome() == v1::StepResult::APPLIED;
  }
  return state.step() - decided;
}

const KeptRequest* FindKept(const JournalState& state, const std::string& id) { return FindLast(state.kept(), id); }

const KeptStep* FindStep(const KeptRequest& kept, uint32_t k) {
  const auto& steps = kept.steps();
  const auto it = std::find_if(steps.begin(), steps.end(), [&](const KeptStep& s) { return s.decision().k() == k; });
  return it == steps.end() ? nullptr : &*it;
}

KeptStep* FindStep(KeptRequest& kept, uint32_t k) { return const_cast<KeptStep*>(FindStep(std::as_const(kept), k)); }

uint64_t LastStep(const KeptRequest& kept) {
  uint64_t last = 0;
  for (const KeptStep& step : kept.steps()) {
    if (step.decision().outcome() == v1::StepResult::APPLIED) last = std::max(last, step.decision().step());
  }
  return last;
}

void CompleteResult(v1::UpdateResult& result) {
  SetRequestMetrics(result, *result.mutable_metrics());
  AddStepWarnings(result);
}

}  // namespace stemma::server
