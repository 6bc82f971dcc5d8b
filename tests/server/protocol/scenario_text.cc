#include "tests/server/protocol/scenario_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/error.h"
#include "common/base/mesh.h"
#include "nlohmann/json.hpp"
#include "server/protocol/incident.h"
#include "tests/server/protocol/scenario_checkpoints.h"

namespace stemma::server {
namespace {

using internal::v1::StepKey;

// All digits: the shortest text that gives the same double back.
std::string Exact(double value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::string KeyText(const StepKey& key) {
  return absl::StrCat(key.request_id(), " k=", key.k(), " step=", key.step(), " attempt=", key.attempt());
}

// Weights that are read from a checkpoint are named, with the digest that they must have.
std::string WeightsText(const internal::v1::PassWeights& weights) {
  return weights.checkpoint().empty() ? weights.name()
                                      : absl::StrCat(weights.checkpoint(), "/", weights.weights_digest());
}

std::string PassText(const internal::v1::Prepare& prepare) {
  if (!prepare.has_log_prob_pass()) return "";
  std::string text;
  for (const internal::v1::PassWeights& weights : prepare.pass_weights()) {
    absl::StrAppend(&text, text.empty() ? "" : ",", WeightsText(weights));
  }
  return text == "policy" ? " pass" : absl::StrCat(" pass=", text);
}

std::string PrepareText(const internal::v1::Prepare& prepare) {
  std::string weights;
  for (const double weight : prepare.rollout_weights()) {
    absl::StrAppend(&weights, weights.empty() ? "" : ",", Exact(weight));
  }
  return absl::StrCat("prepare ", KeyText(prepare.key()), PassText(prepare), " D=", Exact(prepare.denominator()),
                      " w=", weights,
                      prepare.trace_spans_max() > 0 ? absl::StrCat(" spans=", prepare.trace_spans_max()) : "");
}

// A mesh of several ranks says more.
std::string ConfigureText(const internal::v1::Configure& configure) {
  const std::string text =
      absl::StrCat("configure generation=", configure.generation(), " step=", configure.step(),
                   configure.checkpoint().empty() ? "" : absl::StrCat(" from=", configure.checkpoint()));
  if (NumRanks(configure.config().mesh()) == 1) return text;
  const std::string store = configure.store().empty() ? "" : absl::StrCat(" store=", configure.store());
  const std::string threads =
      configure.config().threads() == 0 ? "" : absl::StrCat(" threads=", configure.config().threads());
  return absl::StrCat(text, " rank=", configure.rank(), store, threads);
}

std::string MessageText(const internal::v1::ServerMessage& message) {
  using Message = internal::v1::ServerMessage;
  switch (message.message_case()) {
    case Message::kConfigure:
      return ConfigureText(message.configure());
    case Message::kDrop:
      return absl::StrCat("drop ", message.drop().id());
    case Message::kPrepare:
      return PrepareText(message.prepare());
    case Message::kApply:
      return absl::StrCat(
          "apply ", KeyText(message.apply().key()),
          message.apply().discard() ? " discard" : absl::StrCat(" clip=", Exact(message.apply().clip())));
    case Message::kAbort:
      return absl::StrCat("abort ", message.abort().key().request_id());
    case Message::kLogProb:
      return absl::StrCat("log_prob ", message.log_prob().id(),
                          message.log_prob().weights().checkpoint().empty()
                              ? ""
                              : absl::StrCat(" weights=", WeightsText(message.log_prob().weights())));
    case Message::kVerify:
      return absl::StrCat("verify ", message.verify().id(), " reuse (", PrepareText(message.verify().reuse()),
                          ") dense (", PrepareText(message.verify().dense()), ")");
    case Message::kSave:
      return absl::StrCat("save ", message.save().id(), " ", message.save().folder());
    case Message::kExport:
      return absl::StrCat("export ", message.export_().id(), " ", message.export_().name());
    default:
      return message.has_shutdown() ? "shutdown" : "?";
  }
}

// Lineages are said where they are not the first.
std::string LineageText(const std::string& lineage) { return lineage == "L-1" ? "" : absl::StrCat(" of ", lineage); }

std::string StatusText(const v1::RequestStatus& status) {
  std::string text = absl::StrCat(status.request_id(), " ", v1::RequestState_Name(status.state()), " ",
                                  status.steps_applied(), "/", status.steps_total());
  if (status.queue_position() > 0) absl::StrAppend(&text, " place=", status.queue_position());
  if (status.replayed()) absl::StrAppend(&text, " replayed");
  if (status.has_plan()) absl::StrAppend(&text, " plan");
  if (status.has_failure()) absl::StrAppend(&text, " failure=", status.failure().reason());
  absl::StrAppend(&text, LineageText(status.lineage()));
  if (status.has_result() && status.result().lineage() != status.lineage()) absl::StrAppend(&text, " WRONG LINEAGE");
  for (const v1::StepResult& step : status.result().steps()) {
    absl::StrAppend(&text, " [", step.step(), " ", v1::StepResult::Outcome_Name(step.outcome()),
                    " version=", step.weight_version(), " attempts=", step.attempts());
    const auto predicted = step.metrics().find("plan/predicted_bytes");
    if (predicted != step.metrics().end()) absl::StrAppend(&text, " predicted=", Exact(predicted->second));
    for (const v1::RankTrace& rank : step.trace().ranks()) {
      absl::StrAppend(&text, " rank=", rank.rank(), ",", rank.host(), ",", rank.device(),
                      ",spans=", rank.spans().spans_size());
    }
    absl::StrAppend(&text, step.warnings().empty() ? "" : " warned", "]");
  }
  for (const std::string& warning : status.result().warnings()) absl::StrAppend(&text, " \"", warning, "\"");
  return text;
}

// An error, and whether it says that its id is known; one about lineages with what it says of them.
std::string ErrorLine(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  std::string text = absl::StrCat(absl::StatusCodeToString(status.code()), " ", reason);
  if (absl::StrContains(status.message(), " was accepted before")) absl::StrAppend(&text, " known");
  if (reason != "LINEAGE_MISMATCH" && reason != "ROLLED_BACK" && reason != "EXPORT_EXISTS") return text;
  for (const auto& [key, value] : GetErrorDetails(status).metadata) absl::StrAppend(&text, " ", key, "=", value);
  return text;
}

std::string InfoText(const v1::ServerInfo& info) {
  std::string text = "info";
  for (const v1::RankInfo& rank : info.ranks()) {
    if (rank.device_name().empty()) continue;
    absl::StrAppend(&text, " rank=", rank.rank(), ",", rank.device_name());
    if (rank.phase() != "idle") absl::StrAppend(&text, ",", rank.phase());
    for (const v1::KernelOff& off : rank.kernels_off())
      absl::StrAppend(&text, ",", off.kernel(), "(", off.reason(), ")");
  }
  return text;
}

std::string VerifiedText(const v1::VerifyGroupResponse& verified) {
  return absl::StrCat("verified step=", verified.step(), LineageText(verified.lineage()),
                      " error=", Exact(verified.error_norm()), "/", Exact(verified.gradient_norm()), " of ",
                      verified.parameters_size(), " log_probs=", Exact(verified.log_prob_error_max()), ",",
                      Exact(verified.log_prob_error_mean()), " of ", verified.log_prob_tokens());
}

std::string ReplyText(const Reply& reply) {
  if (const auto* status = std::get_if<absl::Status>(&reply)) {
    return status->ok() ? "ok" : ErrorLine(*status);
  }
  if (const auto* status = std::get_if<v1::RequestStatus>(&reply)) return StatusText(*status);
  if (const auto* model = std::get_if<v1::ModelInfo>(&reply)) {
    return absl::StrCat("model ", v1::ModelInfo::State_Name(model->state()), " step=", model->step(),
                        " version=", model->weight_version(), " lineage=", model->lineage(),
                        model->state_reason().empty() ? "" : absl::StrCat(" because ", model->state_reason()));
  }
  if (const auto* written = std::get_if<v1::ExportWeightsResponse>(&reply)) {
    return absl::StrCat("exported ", written->path(), " step=", written->step(), LineageText(written->lineage()));
  }
  if (const auto* list = std::get_if<v1::ListRequestsResponse>(&reply)) {
    std::string text = "list";
    for (const v1::RequestStatus& status : list->requests()) absl::StrAppend(&text, " (", StatusText(status), ")");
    return text;
  }
  if (const auto* info = std::get_if<v1::ServerInfo>(&reply)) return InfoText(*info);
  if (const auto* verified = std::get_if<v1::VerifyGroupResponse>(&reply)) return VerifiedText(*verified);
  return CheckpointReplyText(reply);
}

std::string RowText(const JournalAction& action) {
  internal::v1::JournalRow row;
  if (!row.ParseFromString(action.body)) return "?";
  const std::string settles = action.settles ? " settles" : "";
  if (row.has_started()) return absl::StrCat("started ", row.started().epoch());
  if (row.has_lineage_begun()) {
    const auto& begun = row.lineage_begun();
    const std::string& checkpoint = begun.has_lost() ? begun.lost().checkpoint() : begun.checkpoint();
    return absl::StrCat("lineage ", begun.name(), begun.has_lost() ? absl::StrCat(" lost=", begun.lost().step()) : "",
                        checkpoint.empty() ? "" : absl::StrCat(" from=", checkpoint));
  }
  if (row.has_model_loaded()) return absl::StrCat("model ", row.model_loaded().model_digest());
  if (row.has_accepted()) {
    const std::string& spool = row.accepted().spool().name();
    return absl::StrCat("accepted ", row.accepted().request_id(), spool.empty() ? "" : " spool=", spool);
  }
  if (row.has_committed()) {
    const auto& committed = row.committed();
    return absl::StrCat("committed ", committed.request_id(), " k=", committed.k(), " step=", committed.step(), " ",
                        v1::StepResult::Outcome_Name(committed.outcome()), " clip=", Exact(committed.clip()));
  }
  if (row.has_applied()) {
    const auto& applied = row.applied();
    return absl::StrCat("applied ", applied.request_id(), " k=", applied.k(), " weights=", applied.weights_digest(),
                        applied.has_result() ? "" : " again", settles);
  }
  if (row.has_skipped()) {
    const auto& skipped = row.skipped();
    return absl::StrCat("skipped ", skipped.request_id(), " k=", skipped.k(), " steps=", skipped.results_size(),
                        settles);
  }
  if (row.has_undone()) return absl::StrCat("undone ", row.undone().request_id(), " k=", row.undone().k());
  if (row.has_finished()) {
    return absl::StrCat("finished ", row.finished().request_id(), " ", v1::RequestState_Name(row.finished().state()),
                        row.finished().resumable() ? " resumable" : "");
  }
  const std::string checkpoint = CheckpointRowText(row);
  return checkpoint.empty() ? "snapshot" : checkpoint;
}

struct TextOf {
  std::string operator()(const SendAction& a) const {
    return absl::StrCat("send ", a.session, " ", MessageText(a.message));
  }
  // A request has two groups; which ones are sent is said where it is not both.
  std::string operator()(const SendPayloadAction& a) const {
    const std::string groups = a.groups.size() == 2 ? "" : absl::StrCat(" groups=", absl::StrJoin(a.groups, ","));
    return absl::StrCat("payload ", a.session, " ", a.id, groups);
  }
  std::string operator()(const PlanAction& a) const {
    return absl::StrCat("plan ", a.id, " ", a.request->header().request_id(), " of a budget of ",
                        a.config.memory_budget_bytes());
  }
  std::string operator()(const LoadAction& a) const { return absl::StrCat("load ", a.file.name()); }
  std::string operator()(const RemoveSpoolAction& a) const { return absl::StrCat("unspool ", a.name); }
  std::string operator()(const JournalAction& a) const { return absl::StrCat("row ", RowText(a)); }
  std::string operator()(const MakeCheckpointFolderAction& a) const { return CheckpointActionText(a); }
  std::string operator()(const CommitCheckpointAction& a) const { return CheckpointActionText(a); }
  std::string operator()(const ReadCheckpointAction& a) const { return CheckpointActionText(a); }
  std::string operator()(const DropReadingAction& a) const { return absl::StrCat("drop reading ", a.id); }
  std::string operator()(const RemoveCheckpointAction& a) const { return CheckpointActionText(a); }
  std::string operator()(const DropSaveAction& a) const { return CheckpointActionText(a); }
  std::string operator()(const RemoveUnfinishedExportsAction&) const { return "sweep exports"; }
  std::string operator()(const MakeExportFolderAction& a) const { return absl::StrCat("make folder ", a.folder); }
  std::string operator()(const RemoveExportAction& a) const { return absl::StrCat("remove export ", a.name); }
  std::string operator()(const StopPlanAction& a) const { return absl::StrCat("stop plan ", a.id); }
  std::string operator()(const CloseSessionAction& a) const {
    return absl::StrCat("close ", a.session, " ", absl::StatusCodeToString(a.status.code()));
  }
  std::string operator()(const ReplyAction& a) const { return absl::StrCat("reply ", a.call, " ", ReplyText(a.reply)); }
  std::string operator()(const ChunkAction& a) const {
    return absl::StrCat("chunk ", a.call, " ", a.chunk->uid(), LineageText(a.chunk->lineage()));
  }
  std::string operator()(const ReadinessAction& a) const { return a.ready ? "serving" : "not serving"; }
  std::string operator()(const SaveCalibrationAction& a) const {
    return absl::StrCat("save calibration of ", a.book.size());
  }
  std::string operator()(const IncidentAction& a) const {
    const bool plan = a.incident.job && a.incident.job->plan;
    return absl::StrCat("incident ", nlohmann::ordered_json::parse(IncidentText(a.incident)).dump(),
                        plan ? " with its plan" : "");
  }
  std::string operator()(const DrainedAction&) const { return "drained"; }
};

}  // namespace

std::string LogText(const Decision& decision) {
  std::string text;
  for (const LoggedReason& reason : decision.reasons) {
    if (reason.level == LogLevel::kInfo) continue;
    absl::StrAppend(&text, reason.level == LogLevel::kError ? "error: " : "warning: ", reason.text, "\n");
  }
  return text;
}

bool IsIgnored(const Decision& decision) {
  return std::any_of(decision.reasons.begin(), decision.reasons.end(),
                     [](const LoggedReason& reason) { return absl::StartsWith(reason.text, "ignored: "); });
}

void FillRegister(const Command& command, internal::v1::Register& message) {
  message.set_memory_free_bytes(command.Get("free", 1000));
  message.set_host(command.Text("host"));
  message.set_device(command.Text("device"));
  message.set_version(command.Text("version"));
  message.set_address(command.Text("address"));
  message.set_cores(static_cast<uint32_t>(command.Get("cores", 0)));
}

void FillReady(const std::map<std::string, std::string>& options, internal::v1::Ready& ready) {
  const auto text = [&](const char* key) { return options.contains(key) ? options.at(key) : ""; };
  ready.set_model_digest(text("weights"));
  ready.set_device_name(text("hardware"));
  if (!options.contains("off")) return;
  ready.add_kernels_off()->set_kernel(text("off"));
  ready.mutable_kernels_off(0)->set_reason("why");
}

void AddSpans(uint64_t count, v1::SpanList& list) {
  for (uint64_t i = 0; i < count; ++i) {
    list.add_spans()->set_kind(v1::StepSpan::WAVE_FORWARD);
    list.mutable_spans()->rbegin()->set_start_ns(i);
  }
}

std::string ActionText(const Action& action) { return std::visit(TextOf(), action); }

}  // namespace stemma::server
