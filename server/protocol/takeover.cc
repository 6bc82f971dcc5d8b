#include "server/protocol/takeover.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/weights_digest_text.h"

namespace stemma::server {
namespace {

constexpr char kOfAnotherRun[] = "-of-another-run";

// Tells whether the journal knows other weights at the checkpoint's step: a copy of this data directory went on by
// itself, and saved it under the name of the same lineage.
bool IsOfAnotherRun(const internal::v1::JournalState& state, const internal::v1::KnownCheckpoint& found) {
  if (found.lineage() != state.lineage()) return false;
  if (found.step() > state.step()) return true;
  for (const internal::v1::KeptRequest& kept : state.kept()) {
    for (const internal::v1::KeptStep& step : kept.steps()) {
      const bool leads_to = step.decision().outcome() == v1::StepResult::APPLIED && step.applied() &&
                            step.decision().step() == found.step();
      if (leads_to && WeightsDiffer(step.weights_digest(), found.weights_digest())) return true;
    }
  }
  return false;
}

// Takes it under a lineage of its own where it is of another run: it can be loaded by its name, and no recovery begins
// with it.
void TakeFound(const CoordinatorParts& parts, internal::v1::KnownCheckpoint found) {
  const std::string text =
      absl::StrCat("checkpoint ", found.name(), " was found: step ", found.step(), " of lineage ", found.lineage());
  const bool of_another = IsOfAnotherRun(parts.history.state(), found);
  if (of_another) {
    found.set_lineage(absl::StrCat(found.lineage(), kOfAnotherRun));
    parts.out.AddWarning(absl::StrCat(text, ", which has no such weights here: it is of another run"));
  } else {
    parts.out.AddReason(text);
  }
  parts.history.TakeCheckpoint(std::move(found));
}

// Tells whether none of the lineage's checkpoints is there, though its steps, or the weights that it began with, would
// be lost without one: they stay known, so that somebody can put them back.
bool MissesItsOwn(const CoordinatorParts& parts, const std::set<std::string>& found) {
  const internal::v1::JournalState& state = parts.history.state();
  const bool any = std::any_of(state.checkpoints().begin(), state.checkpoints().end(), [&](const auto& known) {
    return known.lineage() == state.lineage() && found.contains(known.name());
  });
  return !any && (state.begins_with_checkpoint() || GivesUpSteps(state, {}, state.step(), parts.history.replays()));
}

// Says which steps go with the checkpoints that are not there any more. `before`: what recovery began with, had they
// been there.
void WarnOfGivenUpSteps(const CoordinatorParts& parts, const WeightsBase& before) {
  const internal::v1::JournalState& state = parts.history.state();
  const bool replays = parts.history.replays();
  const WeightsBase base = ChooseBase(state, replays);
  if (base.step >= before.step || !GivesUpSteps(state, base, state.step(), replays)) return;
  parts.out.AddWarning(
      absl::StrCat("without checkpoint ", before.checkpoint, " the steps of lineage ", state.lineage(), " after ",
                   base.step, ", up to ", state.step(), ", are given up: recovery begins with ",
                   base.checkpoint.empty() ? "the model directory" : absl::StrCat("checkpoint ", base.checkpoint)));
}

}  // namespace

// The disk says which checkpoints there are: one may have been copied here, or removed, or its save have ended without
// a row.
void TakeFoundCheckpoints(const CoordinatorParts& parts) {
  std::set<std::string> found, known;
  for (const internal::v1::KnownCheckpoint& checkpoint : parts.options.checkpoints) found.insert(checkpoint.name());
  for (const internal::v1::KnownCheckpoint& checkpoint : parts.history.state().checkpoints())
    known.insert(checkpoint.name());
  const WeightsBase before = ChooseBase(parts.history.state(), parts.history.replays());
  const bool missed = MissesItsOwn(parts, found);
  for (const std::string& name : known) {
    if (found.contains(name)) continue;
    const bool own = FindCheckpoint(parts.history.state(), name)->lineage() == parts.history.state().lineage();
    if (!missed || !own) parts.history.DropCheckpoint(name);
    parts.out.AddWarning(absl::StrCat("checkpoint ", name, " is not there any more"));
  }
  for (const internal::v1::KnownCheckpoint& checkpoint : parts.options.checkpoints) {
    if (known.contains(checkpoint.name())) continue;
    TakeFound(parts, checkpoint);
  }
  WarnOfGivenUpSteps(parts, before);  // after all: what was put in their place may save some
}

// A new journal beside checkpoints goes on from one of them.
void BeginFirstLineage(const CoordinatorParts& parts) {
  internal::v1::LineageBegun row;
  if (const auto* resumed = FindCheckpoint(parts.history.state(), parts.options.resume); resumed != nullptr) {
    parts.lineage.BeginWith(*resumed);
    row.set_checkpoint(resumed->name());
    row.set_step(resumed->step());
    parts.out.AddReason(absl::StrCat("lineage ", parts.lineage.name(), " begins with checkpoint ", resumed->name(),
                                     " at step ", resumed->step()));
  }
  row.set_name(parts.lineage.name());
  row.set_weight_version(parts.lineage.weight_version());
  parts.history.BeginLineage(std::move(row));
}

void UndoWhatIsNotKept(const CoordinatorParts& parts) {
  if (parts.history.replays()) return;
  std::vector<std::pair<std::string, uint32_t>> undone;
  for (const internal::v1::KeptRequest& kept : parts.history.state().kept()) {
    if (kept.steps().empty() || kept.steps().rbegin()->applied()) continue;
    undone.emplace_back(kept.request_id(), kept.steps().rbegin()->decision().k());
  }
  for (const auto& [id, k] : undone) parts.history.Undo(id, k);
}

void EndWhatIsNotKept(const CoordinatorParts& parts) {
  for (UpdateRecord* record : parts.jobs.table().Open()) {
    const internal::v1::KeptRequest* kept = FindKept(parts.history.state(), record->id);
    if (parts.history.replays() && kept != nullptr && kept->open()) continue;
    parts.jobs.GiveUpUpdate(*record, "the server was started again, and the request was not kept (durability: rewind)");
  }
}

}  // namespace stemma::server
