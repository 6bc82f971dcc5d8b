#include "server/protocol/checkpoint_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/admission/log_prob_sources.h"
#include "common/base/error.h"
#include "glog/logging.h"
#include "server/protocol/journal_fold.h"

namespace stemma::server {
namespace {

using internal::v1::JournalState;
using internal::v1::KeptRequest;
using internal::v1::KeptStep;
using internal::v1::KnownCheckpoint;

bool IsSound(const JournalState& state, const KnownCheckpoint& known) {
  return known.lineage() == state.lineage() && known.damage().empty();
}

// The one that was saved last comes first among equal steps.
template <typename Checkpoints>
std::vector<const KnownCheckpoint*> SoundNewestFirst(const JournalState& state, const Checkpoints& of) {
  std::vector<const KnownCheckpoint*> sound;
  for (auto it = of.rbegin(); it != of.rend(); ++it) {
    if (IsSound(state, *it)) sound.push_back(&*it);
  }
  std::stable_sort(sound.begin(), sound.end(),
                   [](const KnownCheckpoint* a, const KnownCheckpoint* b) { return a->step() > b->step(); });
  return sound;
}

// Returns ChooseBase's, of the lineage's sound checkpoints, newest first.
WeightsBase ChooseOfSound(const JournalState& state, const std::vector<const KnownCheckpoint*>& sound, bool replays) {
  const auto whole = [&](uint64_t step) { return !GivesUpSteps(state, {.step = step}, state.step(), replays); };
  for (const KnownCheckpoint* known : sound) {
    if (whole(known->step())) return {known->name(), known->step()};
  }
  if (sound.empty() || (whole(0) && !state.begins_with_checkpoint())) return {};
  return {sound.front()->name(), sound.front()->step()};
}

double After(double seconds) { return std::nextafter(seconds, std::numeric_limits<double>::infinity()); }

}  // namespace

const KnownCheckpoint* FindCheckpoint(const JournalState& state, const std::string& name) {
  const auto& all = state.checkpoints();
  const auto it =
      std::find_if(all.begin(), all.end(), [&](const KnownCheckpoint& known) { return known.name() == name; });
  return it == all.end() ? nullptr : &*it;
}

const KnownCheckpoint* NewestSound(const JournalState& state) {
  const std::vector<const KnownCheckpoint*> sound = SoundNewestFirst(state, state.checkpoints());
  return sound.empty() ? nullptr : sound.front();
}

bool CanRecompute(const JournalState& state, uint64_t step) {
  std::set<uint64_t> kept;
  for (const KeptRequest& request : state.kept()) {
    for (const KeptStep& decided : request.steps()) {
      if (decided.decision().outcome() == v1::StepResult::APPLIED && decided.decision().step() > step)
        kept.insert(decided.decision().step());
    }
  }
  return step <= state.step() && kept.size() == state.step() - step;
}

bool IsInsideKept(const JournalState& state, uint64_t step) {
  return std::any_of(state.kept().begin(), state.kept().end(), [&](const KeptRequest& kept) {
    const bool begun = std::any_of(kept.steps().begin(), kept.steps().end(), [&](const KeptStep& decided) {
      return decided.decision().outcome() == v1::StepResult::APPLIED && decided.decision().step() <= step;
    });
    return begun && (kept.open() || LastStep(kept) > step);
  });
}

WeightsBase ChooseBase(const JournalState& state, bool replays) {
  return ChooseOfSound(state, SoundNewestFirst(state, state.checkpoints()), replays);
}

WeightsBase ChooseBase(const JournalState& state, std::span<const KnownCheckpoint> of, bool replays) {
  return ChooseOfSound(state, SoundNewestFirst(state, of), replays);
}

bool GivesUpSteps(const JournalState& state, const WeightsBase& base, uint64_t step, bool replays) {
  if (!replays) return base.step != step;
  return IsInsideKept(state, base.step) || !CanRecompute(state, base.step);
}

double SavedAtSeconds(const JournalState& state, absl::Time now) {
  double saved_at_s = absl::ToDoubleSeconds(now - absl::UnixEpoch());
  for (const KnownCheckpoint& known : state.checkpoints()) saved_at_s = std::max(saved_at_s, After(known.saved_at_s()));
  return saved_at_s;
}

std::string FurthestOfNewestLineage(std::span<const KnownCheckpoint> found) {
  std::map<std::string, const KnownCheckpoint*> furthest;  // by lineage
  for (const KnownCheckpoint& known : found) {
    const KnownCheckpoint*& of_lineage = furthest[known.lineage()];
    if (of_lineage == nullptr || known.step() >= of_lineage->step()) of_lineage = &known;
  }
  const KnownCheckpoint* newest = nullptr;
  for (const auto& [lineage, known] : furthest) {
    if (newest == nullptr || known->saved_at_s() > newest->saved_at_s()) newest = known;
  }
  return newest == nullptr ? "" : newest->name();
}

const std::string* DigestIn(const KnownCheckpoint& checkpoint, const std::string& dtype) {
  if (checkpoint.dtype() == dtype) return &checkpoint.weights_digest();
  return checkpoint.loaded_dtype() == dtype ? &checkpoint.loaded_digest() : nullptr;
}

const KnownCheckpoint* MissedCheckpoint(const JournalState& state, const WeightsBase& base, bool replays) {
  // The directory's weights are not the lineage's, however few steps it has made.
  const bool begins_elsewhere = base.checkpoint.empty() && state.begins_with_checkpoint();
  if (!begins_elsewhere && (base.step > 0 || !GivesUpSteps(state, base, state.step(), replays))) return nullptr;
  const KnownCheckpoint* missed = nullptr;
  for (const KnownCheckpoint& known : state.checkpoints()) {
    const bool led_to = known.lineage() == state.lineage() &&  // and damaged, or it were the base
                        (known.step() > 0 || begins_elsewhere);
    if (led_to && (missed == nullptr || known.step() >= missed->step())) missed = &known;
  }
  return missed;
}

uint64_t SharedSteps(const JournalState& state, const WeightsBase& base) {
  const KnownCheckpoint* known = FindCheckpoint(state, base.checkpoint);
  return known != nullptr && known->lineage() == state.lineage() ? base.step : 0;
}

bool SurvivesLoss(bool is_final, uint64_t last_step, uint64_t step) {
  return is_final && last_step > 0 && last_step <= step;
}

std::vector<std::string> SurplusCheckpoints(const JournalState& state, uint32_t keep) {
  std::set<std::string> stay;
  const std::vector<const KnownCheckpoint*> sound = SoundNewestFirst(state, state.checkpoints());
  for (size_t i = 0; i < std::min<size_t>(keep, sound.size()); ++i) stay.insert(sound[i]->name());
  uint32_t newest = 0;
  for (auto it = state.checkpoints().rbegin(); it != state.checkpoints().rend(); ++it) {
    if (it->pinned() || newest++ < keep) stay.insert(it->name());
  }
  std::vector<std::string> surplus;
  for (const KnownCheckpoint& known : state.checkpoints()) {
    if (!stay.contains(known.name())) surplus.push_back(known.name());
  }
  return surplus;
}

bool IsReadByKept(const JournalState& state, const std::string& name) {
  return std::any_of(state.kept().begin(), state.kept().end(), [&](const KeptRequest& kept) {
    return std::find(kept.checkpoints().begin(), kept.checkpoints().end(), name) != kept.checkpoints().end();
  });
}

absl::Status CheckReadable(const JournalState& state, const std::vector<std::string>& checkpoints) {
  for (const std::string& name : checkpoints) {
    const KnownCheckpoint* known = FindCheckpoint(state, name);
    if (known == nullptr) {
      return MakeError(Reason::kNotFound,
                       absl::StrCat("there is no checkpoint ", name,
                                    ", whose weights the request is to read: name one "
                                    "that ListCheckpoints has, or \"policy\""),
                       {.metadata = {{"name", name}}});
    }
    if (!known->damage().empty()) return DamagedError(*known);
  }
  return absl::OkStatus();
}

internal::v1::PassWeights PassWeightsOf(const JournalState& state, const std::string& name, const std::string& dtype) {
  internal::v1::PassWeights weights;
  weights.set_name(name);
  if (name == kPolicyWeights) return weights;
  const KnownCheckpoint* known = FindCheckpoint(state, name);
  CHECK(known != nullptr) << name;
  weights.set_checkpoint(name);
  if (const std::string* digest = DigestIn(*known, dtype)) weights.set_weights_digest(*digest);
  return weights;
}

absl::Status DamagedError(const KnownCheckpoint& checkpoint) {
  return MakeError(Reason::kCorruptCheckpoint, absl::StrCat("checkpoint ", checkpoint.name(), " is damaged: ",
                                                            checkpoint.damage(), "; VerifyCheckpoint reads it again"));
}

std::string TemporaryFolderOf(const std::string& name) { return absl::StrCat(".tmp-", name); }

std::string AutomaticName(uint64_t step, const std::function<bool(const std::string&)>& taken) {
  std::string name = absl::StrFormat("step-%08d", step);
  if (!taken(name)) return name;
  for (int i = 2;; ++i) {
    std::string next = absl::StrCat(name, "-", i);
    if (!taken(next)) return next;
  }
}

}  // namespace stemma::server
