#include "server/protocol/lineage_changes.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/weights_digest_text.h"
#include "common/model/config_difference.h"

namespace stemma::server {
namespace {

constexpr char kBeginAsBefore[] = "give the server the directory that it began with, or a --data directory of its own";

// `began_with`: as the journal has it; "": that is not known.
absl::Status CheckSameConfig(const std::string& lineage, const std::string& began_with, const ModelConfig& model) {
  if (began_with.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const ModelConfig before, ParseModelConfig(began_with));
  const std::string field = FirstDifference(before, model);
  if (field.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("config.json of the model directory has another ", field,
                                                    " than when lineage ", lineage, " began: ", kBeginAsBefore));
}

}  // namespace

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

void ReadMissedAgain(const CoordinatorParts& parts) {
  const internal::v1::JournalState& state = parts.history.state();
  const bool replays = parts.history.replays();
  if (MissedCheckpoint(state, ChooseBase(state, replays), replays) == nullptr) return;
  std::vector<std::string> damaged;
  for (const internal::v1::KnownCheckpoint& known : state.checkpoints()) {
    if (known.lineage() == state.lineage() && !known.damage().empty()) damaged.push_back(known.name());
  }
  for (const std::string& name : damaged) parts.history.JudgeCheckpoint(name, "");
}

absl::Status CheckNoneMissed(const CoordinatorParts& parts, const WeightsBase& base) {
  const auto* missed = MissedCheckpoint(parts.history.state(), base, parts.history.replays());
  if (missed == nullptr) return absl::OkStatus();
  return MakeError(
      Reason::kCorruptCheckpoint,
      absl::StrCat("no checkpoint of lineage ", parts.lineage.name(), " can be read, as ", missed->name(), " (",
                   missed->damage(), "), and without one its ",
                   parts.lineage.step() > 0 ? absl::StrCat(parts.lineage.step(), " steps") : "weights",
                   " are lost. Nothing was changed: put the files back, or mount their folder, and start the "
                   "server again; or load another checkpoint; to begin anew, give the server another --data"));
}

void EndWhatIsLost(const CoordinatorParts& parts, const WeightsBase& base) {
  if (GivesUpSteps(parts.history.state(), base, parts.lineage.step(), parts.history.replays())) EndLineage(parts, base);
}

void EndWhatIsRuined(const CoordinatorParts& parts) {
  if (parts.history.replays() || parts.lineage.unusable().empty()) return;
  const WeightsBase base = ChooseBase(parts.history.state(), /*replays=*/false);
  if (CheckNoneMissed(parts, base).ok()) EndLineage(parts, base);
}

absl::Status CheckModel(const CoordinatorParts& parts, const internal::v1::Ready& ready) {
  if (!parts.history.replays() || ready.model_digest().empty()) return absl::OkStatus();
  const internal::v1::JournalState& state = parts.history.state();
  const std::string& dtype = parts.gang.config().dtype();
  if (state.model_digest().empty()) {
    internal::v1::ModelLoaded loaded;
    loaded.set_model_digest(ready.model_digest());
    loaded.set_dtype(dtype);
    loaded.set_config(ready.model_config());
    parts.history.LoadModel(std::move(loaded));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(CheckSameConfig(parts.lineage.name(), state.model_config(), parts.options.model));
  if (!WeightsDiffer(state.model_digest(), ready.model_digest())) return absl::OkStatus();
  const std::string& began_in = state.model_dtype();
  if (!began_in.empty() && began_in != dtype) {
    return absl::FailedPreconditionError(absl::StrCat("lineage ", parts.lineage.name(), " began in ", began_in,
                                                      ", and this run is in ", dtype, ": start it with --dtype ",
                                                      began_in, ", or give the server a --data directory of its own"));
  }
  return absl::FailedPreconditionError(absl::StrCat("the model directory holds other weights than those that lineage ",
                                                    parts.lineage.name(), " began with: ", kBeginAsBefore));
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
