#include "server/protocol/journal_checks.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/names.h"
#include "common/base/request_state.h"
#include "common/base/status_macros.h"

namespace stemma::server {
namespace {

using internal::v1::JournalState;
using internal::v1::KeptRequest;
using internal::v1::KeptStep;
using internal::v1::KnownRequest;

absl::Status Wrong(const std::string& why) {
  return absl::DataLossError(absl::StrCat("the journal makes no sense: ", why));
}

absl::Status CheckRequest(const KnownRequest& request, const JournalState& state) {
  const std::string& id = request.request_id();
  if (const absl::Status name = CheckRequestId(id); !name.ok()) return Wrong(std::string(name.message()));
  const v1::RequestState reached = request.status().state();
  if (!v1::RequestState_IsValid(reached) || reached == v1::REQUEST_STATE_UNSPECIFIED) {
    return Wrong(absl::StrCat("request ", id, " is in state ", static_cast<int>(reached)));
  }
  if (IsFinal(reached)) return absl::OkStatus();
  if (request.has_lost_step()) return Wrong(absl::StrCat("request ", id, " is open, and its weights are lost"));
  if (request.lineage() != state.lineage() || state.lineage().empty()) {
    return Wrong(absl::StrCat("request ", id, " is open in lineage ", request.lineage(), ", not ", state.lineage()));
  }
  return absl::OkStatus();
}

bool Applies(const KeptRequest& kept) {
  return std::any_of(kept.steps().begin(), kept.steps().end(),
                     [](const KeptStep& step) { return step.decision().outcome() == v1::StepResult::APPLIED; });
}

// Returns how many of a request's steps have a result.
uint64_t StepsEnded(const JournalState& state, const std::string& id) {
  const auto& all = state.requests();
  const auto it = std::find_if(all.rbegin(), all.rend(), [&](const auto& known) { return known.request_id() == id; });
  return it == all.rend() ? 0 : static_cast<uint64_t>(it->result().steps_size());
}

// Checks that the last step alone may not be applied yet, and is the next one of an open request: a step is decided
// once all before it have a result, and a request ends once all of its own do.
absl::Status CheckApplied(const JournalState& state) {
  const KeptRequest* waits = nullptr;
  for (const KeptRequest& kept : state.kept()) {
    for (const KeptStep& step : kept.steps()) {
      if (waits != nullptr) return Wrong(absl::StrCat("a step of ", waits->request_id(), " was passed over"));
      if (step.applied()) continue;
      if (!kept.open()) return Wrong(absl::StrCat(kept.request_id(), " ended before its last step was applied"));
      waits = &kept;
    }
  }
  if (waits == nullptr) return absl::OkStatus();
  const uint64_t next = StepsEnded(state, waits->request_id());
  const uint32_t k = waits->steps().rbegin()->decision().k();
  if (k == next) return absl::OkStatus();
  return Wrong(
      absl::StrCat("step k=", k, " of ", waits->request_id(), " is decided, and k=", next, " is the next one"));
}

// Steps in their order: each that is applied counts one more, and the last of them is the lineage's.
absl::Status CheckSteps(const JournalState& state) {
  bool any = false;
  uint64_t last = 0;
  for (const KeptRequest& kept : state.kept()) {
    for (int i = 0; i < kept.steps_size(); ++i) {
      const internal::v1::StepCommitted& decision = kept.steps(i).decision();
      const bool applies = decision.outcome() == v1::StepResult::APPLIED;
      if (any ? decision.step() != last + (applies ? 1 : 0) : applies && decision.step() == 0) {
        return Wrong(absl::StrCat("step ", decision.step(), " of ", kept.request_id(), " follows step ", last));
      }
      if (i > 0 && decision.k() <= kept.steps(i - 1).decision().k()) {
        return Wrong(absl::StrCat("step k=", decision.k(), " of ", kept.request_id(), " follows a later one"));
      }
      any = true;
      last = decision.step();
    }
  }
  if (any && last != state.step()) return Wrong(absl::StrCat("step ", last, " is the last one, not ", state.step()));
  return absl::OkStatus();
}

absl::Status CheckCheckpoints(const JournalState& state) {
  std::set<std::string> names;
  for (const internal::v1::KnownCheckpoint& known : state.checkpoints()) {
    if (const absl::Status name = CheckFileName(known.name()); !name.ok()) return Wrong(std::string(name.message()));
    if (!names.insert(known.name()).second) return Wrong(absl::StrCat("checkpoint ", known.name(), " is there twice"));
    if (known.lineage() == state.lineage() && known.step() > state.step()) {
      return Wrong(
          absl::StrCat("checkpoint ", known.name(), " is at step ", known.step(), ", beyond step ", state.step()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckJournalState(const JournalState& state) {
  if (state.epoch() > INT64_MAX) return Wrong(absl::StrCat("no server began ", state.epoch(), " times"));
  std::set<std::string> known, open;
  for (const KnownRequest& request : state.requests()) {
    RETURN_IF_ERROR(CheckRequest(request, state));
    if (!known.insert(request.request_id()).second) return Wrong(absl::StrCat(request.request_id(), " is there twice"));
    if (!IsFinal(request.status().state())) open.insert(request.request_id());
  }
  for (const KeptRequest& kept : state.kept()) {
    if (!kept.open() && !Applies(kept)) {
      return Wrong(absl::StrCat("the groups of ", kept.request_id(), " are kept, and none of its steps was applied"));
    }
    if (kept.open() && open.erase(kept.request_id()) == 0) {
      return Wrong(absl::StrCat("the groups of ", kept.request_id(), " are kept for a request that is not open"));
    }
  }
  if (state.lineage().empty() && (state.step() > 0 || state.kept_size() > 0)) return Wrong("steps of no lineage");
  RETURN_IF_ERROR(CheckCheckpoints(state));
  RETURN_IF_ERROR(CheckSteps(state));
  return CheckApplied(state);
}

}  // namespace stemma::server
