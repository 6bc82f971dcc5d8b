#include "server/protocol/lineage_changes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/weights_digest_text.h"

namespace stemma::server {

void FailEverything(const CoordinatorParts& parts, const absl::Status& status) {
  parts.arrivals.EndAll(status);
  parts.jobs.FailAll(status);
}

void LeaveEverything(const CoordinatorParts& parts, const absl::Status& status) {
  parts.arrivals.EndAll(status);
  parts.jobs.LeaveAll(status);
}

void EndLineage(const CoordinatorParts& parts, const WeightsBase& base, LogLevel level) {
  LostLineage lost = parts.lineage.End(base);
  lost.shared_step = SharedSteps(parts.history.state(), base);
  internal::v1::LineageBegun row;
  row.set_name(parts.lineage.name());
  row.set_weight_version(parts.lineage.weight_version());
  row.mutable_lost()->set_lineage(lost.name);
  row.mutable_lost()->set_step(lost.step);
  row.mutable_lost()->set_checkpoint(base.checkpoint);
  row.mutable_lost()->set_checkpoint_step(base.step);
  parts.history.BeginLineage(std::move(row));
  parts.out.AddReason(level, parts.lineage.LostText(lost));
  parts.jobs.RollBack(lost);
  FailEverything(parts, parts.lineage.LostError(lost));
}

void RenameLineage(const CoordinatorParts& parts, const std::string& what) {
  const std::string before = parts.lineage.name();
  parts.lineage.Rename();
  parts.jobs.RenameLineage(before);
  internal::v1::LineageBegun row;
  row.set_name(parts.lineage.name());
  row.set_weight_version(parts.lineage.weight_version());
  parts.history.BeginLineage(std::move(row));
  parts.out.AddWarning(
      absl::StrCat(what, " has other bits than before: lineage ", before, " goes on as ", parts.lineage.name()));
}

absl::Status CheckModel(const CoordinatorParts& parts, const std::string& model_digest) {
  if (!parts.history.replays() || model_digest.empty()) return absl::OkStatus();
  const std::string before = parts.history.state().model_digest();
  const std::string& dtype = parts.gang.config().dtype();
  if (before.empty()) parts.history.LoadModel(model_digest, dtype);
  if (!WeightsDiffer(before, model_digest)) return absl::OkStatus();
  const std::string& began_in = parts.history.state().model_dtype();
  if (!began_in.empty() && began_in != dtype) {
    return absl::FailedPreconditionError(absl::StrCat("lineage ", parts.lineage.name(), " began in ", began_in,
                                                      ", and this run is in ", dtype, ": start it with --dtype ",
                                                      began_in, ", or give the server a --data directory of its own"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the model directory holds other weights than those that lineage ", parts.lineage.name(),
                   " began with: give the server the directory that it began with, or a --data directory of its own"));
}

absl::Status LoseDecidedStep(const CoordinatorParts& parts, const std::string& reason) {
  if (!parts.jobs.running().is_update()) return absl::OkStatus();
  const UpdateRecord& record = parts.jobs.RunningUpdate();
  if (parts.history.FindDecision(record.id, record.k) == nullptr) return absl::OkStatus();
  const uint32_t losses = parts.lineage.CountLossAgain();
  if (losses < parts.options.losses_again_max) return absl::OkStatus();
  return MakeError(
      Reason::kDiverged,
      absl::StrCat("workers were lost ", losses,
                   " times in a row while they computed again what was decided, the last time in step ",
                   parts.lineage.weights_step() + 1, " (request ", record.id, ", k ", record.k, "): ", reason,
                   "; look at what they logged, and at incidents/ in --data; then start the server again to try "
                   "again, load another checkpoint, or go on without the steps: --durability rewind"));
}

// A save needs its ranks until all of them have written.
void LoseSave(const CoordinatorParts& parts) {
  for (const std::string& folder : parts.save.TakeGivenUp()) parts.out.Add(DropSaveAction{folder});
  if (!parts.save.exists() || parts.save.commits()) return;
  const bool has_folder = !parts.save.awaits_folder();  // else it goes when the disk has made it
  const CheckpointSave::Order order = has_folder ? parts.save.End() : parts.save.GiveUp();
  if (has_folder) parts.out.Add(DropSaveAction{order.folder});
  const absl::Status lost =
      MakeError(Reason::kAttemptsExhausted,
                absl::StrCat("the workers were lost, or told to leave, before checkpoint ", order.manifest.name(),
                             " was written; nothing is left of it; save again"));
  parts.save.CountFailed();
  parts.out.AddWarning(std::string(lost.message()));
  if (order.call != 0) parts.out.Reply(order.call, lost);
}

}  // namespace stemma::server
