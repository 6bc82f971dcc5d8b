// Which weights the model has: lineages, and what is said of requests whose weights are lost.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "server/protocol/coordinator_send.h"

namespace stemma::server {
namespace {

constexpr size_t kLostLineagesMax = 64;
constexpr char kDecide[] = "decide, then send new rollouts under a new request_id";

}  // namespace

std::string CoordinatorState::NewLineage() { return absl::StrCat(options_.lineage_prefix, "-", ++lineages_); }

std::string CoordinatorState::LostText(const LostLineage& lost) const {
  return absl::StrCat(
      "the weights of lineage ", lost.name, " at step ", lost.step,
      " were lost with their worker, and there is no checkpoint; the model, which starts again from its "
      "directory, is at step ",
      step_, " of lineage ", lineage_);
}

std::map<std::string, std::string> CoordinatorState::LostMetadata(const LostLineage& lost) const {
  return {{"lineage", lineage_},
          {"step", absl::StrCat(step_)},
          {"lost_lineage", lost.name},
          {"lost_step", absl::StrCat(lost.step)}};
}

void CoordinatorState::LoseLineage() {
  const LostLineage lost = {.name = std::exchange(lineage_, NewLineage()), .step = std::exchange(step_, 0)};
  ++weight_version_;
  lost_lineages_.push_back(lost);
  if (lost_lineages_.size() > kLostLineagesMax) lost_lineages_.pop_front();
  Say(LostText(lost));
  for (UpdateRecord* record : table_.InOrder()) {
    if (record->lineage != lost.name) continue;
    record->lost_step = lost.step;
    if (record->final()) table_.DropResults(*record);
  }
  for (UpdateRecord* record : table_.Open()) FinishUpdate(*record, v1::ROLLED_BACK, RolledBackError(*record));
  FailEverything(MakeError(Reason::kRolledBack, LostText(lost), {.metadata = LostMetadata(lost)}));
}

// REQUIRES: its lineage is lost. Says what the request was before, where that is more than open.
absl::Status CoordinatorState::RolledBackError(const UpdateRecord& record) const {
  const LostLineage lost = {.name = record.lineage, .step = record.lost_step.value()};
  std::string before;
  if (record.final() && record.status.state() != v1::ROLLED_BACK) {
    absl::StrAppend(&before, ", was ", v1::RequestState_Name(record.status.state()),
                    record.failure.ok() ? "" : absl::StrCat(" (", ErrorReason(record.failure), ")"));
  }
  return MakeError(
      Reason::kRolledBack,
      absl::StrCat("request ", record.id, ", with ", record.status.steps_applied(), " of ", record.status.steps_total(),
                   " steps applied", before, ", is rolled back: ", LostText(lost), ": ", kDecide),
      {.metadata = LostMetadata(lost)});
}

absl::Status CoordinatorState::CheckLineage(const std::string& expected) const {
  if (expected == lineage_) return absl::OkStatus();
  std::map<std::string, std::string> metadata = {
      {"lineage", lineage_}, {"step", absl::StrCat(step_)}, {"expected_lineage", expected}};
  const auto lost = std::find_if(lost_lineages_.begin(), lost_lineages_.end(),
                                 [&](const LostLineage& l) { return l.name == expected; });
  std::string why = absl::StrCat("this server does not know it (was it started again?); the model is at step ", step_,
                                 " of lineage ", lineage_);
  if (lost != lost_lineages_.end()) {
    why = LostText(*lost);
    metadata.merge(LostMetadata(*lost));
  }
  return MakeError(Reason::kLineageMismatch,
                   absl::StrCat("expected_lineage is ", expected, ": ", why,
                                ": decide, then expect the lineage that is there, or none"),
                   {.metadata = std::move(metadata)});
}

absl::Status CoordinatorState::CheckExpected(const v1::RequestHeader& header, uint64_t step) const {
  if (header.has_expected_lineage()) {
    if (absl::Status status = CheckLineage(header.expected_lineage()); !status.ok()) return status;
  }
  if (!header.has_expected_step() || header.expected_step() == step) return absl::OkStatus();
  return MakeError(Reason::kStepMismatch,
                   absl::StrCat("expected_step is ", header.expected_step(), ", the request would start at step ", step,
                                " of lineage ", lineage_),
                   {.metadata = {{"step", absl::StrCat(step)}, {"lineage", lineage_}}});
}

}  // namespace stemma::server
