#include "server/protocol/worker_messages.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/device_name.h"
#include "common/base/error.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "server/protocol/link_reports.h"
#include "server/protocol/step_trace.h"

namespace stemma::server {
namespace {

using internal::v1::WorkerMessage;

constexpr size_t kTextBytesMax = 1000, kReasonBytesMax = 64, kModelConfigBytesMax = 4096;
constexpr size_t kIdBytesMax = 256;  // a request id, or one that the server made
constexpr size_t kHostBytesMax = 256, kVersionBytesMax = 64;
constexpr size_t kGroupBytesMax = 4096;  // a path: containers lie deep, and a worker of one is no liar
constexpr int kLayoutsMax = 16, kMetadataMax = 8, kKernelsOffMax = 64;
constexpr uint64_t kMemoryBytesMax = uint64_t{1} << 60;
constexpr uint32_t kThreadsMax = 4096;

absl::Status WrongField(std::string_view field, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(field), " ", std::string(why)));
}

absl::Status CheckName(std::string_view field, const std::string& name) {
  return CheckFileName(name).ok() ? absl::OkStatus() : WrongField(field, "is no name");
}

absl::Status CheckLength(std::string_view field, const std::string& text, size_t bytes_max) {
  if (text.size() <= bytes_max) return absl::OkStatus();
  return WrongField(field, absl::StrCat("has ", text.size(), " bytes, at most ", bytes_max, " are taken"));
}

absl::Status CheckMemoryBytes(std::string_view field, uint64_t bytes) {
  return bytes <= kMemoryBytesMax ? absl::OkStatus() : WrongField(field, absl::StrCat("is ", bytes));
}

absl::Status Check(const internal::v1::Register& message) {
  RETURN_IF_ERROR(CheckName("register.incarnation", message.incarnation()));
  RETURN_IF_ERROR(CheckLength("register.host", message.host(), kHostBytesMax));
  RETURN_IF_ERROR(CheckLength("register.version", message.version(), kVersionBytesMax));
  RETURN_IF_ERROR(CheckLength("register.address", message.address(), kHostBytesMax));
  RETURN_IF_ERROR(CheckLength("register.build_id", message.build_id(), kVersionBytesMax));
  RETURN_IF_ERROR(CheckLength("register.device_id", message.device_id(), kVersionBytesMax));
  RETURN_IF_ERROR(CheckLength("register.machine", message.machine(), kVersionBytesMax));
  RETURN_IF_ERROR(CheckLength("register.memory_group", message.memory_group(), kGroupBytesMax));
  RETURN_IF_ERROR(CheckLength("register.core_group", message.core_group(), kGroupBytesMax));
  if (message.cores() > kThreadsMax) return WrongField("register.cores", absl::StrCat("is ", message.cores()));
  if (!message.device().empty() && !ParseDevice(message.device()).ok()) {
    return WrongField("register.device", "is no device, as cpu:0");
  }
  if (message.layouts_size() > kLayoutsMax) return WrongField("register.layouts", "is too long");
  RETURN_IF_ERROR(CheckMemoryBytes("register.memory_bytes", message.memory_bytes()));
  RETURN_IF_ERROR(CheckMemoryBytes("register.memory_free_bytes", message.memory_free_bytes()));
  return CheckMemoryBytes("register.host_free_bytes", message.host_free_bytes());
}

// What the other ranks dial: an address of one process, never a name to be looked up.
absl::Status Check(const internal::v1::StoreOpened& message) {
  RETURN_IF_ERROR(CheckLength("store_opened.address", message.address(), kHostBytesMax));
  const absl::StatusOr<HostPort> address = ParseDialAddress(message.address());
  if (!address.ok()) return WrongField("store_opened.address", std::string(address.status().message()));
  return absl::OkStatus();
}

absl::Status CheckKernelsOff(const internal::v1::Ready& message) {
  if (message.kernels_off_size() > kKernelsOffMax) return WrongField("ready.kernels_off", "is too long");
  std::set<std::string_view> names;
  for (const v1::KernelOff& off : message.kernels_off()) {
    RETURN_IF_ERROR(CheckName("ready.kernels_off.kernel", off.kernel()));
    if (!names.insert(off.kernel()).second) {
      return WrongField("ready.kernels_off.kernel", absl::StrCat("has ", off.kernel(), " twice"));
    }
    RETURN_IF_ERROR(CheckLength("ready.kernels_off.reason", off.reason(), kTextBytesMax));
  }
  return absl::OkStatus();
}

absl::Status Check(const internal::v1::Ready& message) {
  RETURN_IF_ERROR(CheckLength("ready.model_digest", message.model_digest(), kReasonBytesMax));
  RETURN_IF_ERROR(CheckLength("ready.model_config", message.model_config(), kModelConfigBytesMax));
  RETURN_IF_ERROR(CheckLength("ready.model_files", message.model_files(), kReasonBytesMax));
  RETURN_IF_ERROR(CheckLength("ready.device_name", message.device_name(), kHostBytesMax));
  RETURN_IF_ERROR(CheckKernelsOff(message));
  RETURN_IF_ERROR(CheckLinks(message.links()));
  if (message.config().threads() <= kThreadsMax) return absl::OkStatus();
  return WrongField("ready.config.threads", absl::StrCat("is ", message.config().threads()));
}

absl::Status Check(const internal::v1::StepKey& key) {
  RETURN_IF_ERROR(CheckLength("key.incarnation", key.incarnation(), kIdBytesMax));
  return CheckLength("key.request_id", key.request_id(), kIdBytesMax);
}

absl::Status CheckSeconds(std::string_view field, double seconds) {
  return std::isfinite(seconds) && seconds >= 0 ? absl::OkStatus() : WrongField(field, absl::StrCat("is ", seconds));
}

// A loss that is not finite is no breach: the gradient of a step may be so. What a clock or an allocator counted is.
absl::Status Check(const internal::v1::StepSums& sums) {
  RETURN_IF_ERROR(CheckSeconds("vote.sums.prefix_forward_s", sums.prefix_forward_s()));
  RETURN_IF_ERROR(CheckSeconds("vote.sums.suffix_s", sums.suffix_s()));
  RETURN_IF_ERROR(CheckSeconds("vote.sums.prefix_backward_s", sums.prefix_backward_s()));
  RETURN_IF_ERROR(CheckSeconds("vote.sums.log_probs_s", sums.log_probs_s()));
  RETURN_IF_ERROR(CheckSeconds("vote.sums.agree_s", sums.agree_s()));
  RETURN_IF_ERROR(CheckSeconds("vote.sums.reduce_s", sums.reduce_s()));
  RETURN_IF_ERROR(CheckSeconds("vote.sums.reduce_overlapped_s", sums.reduce_overlapped_s()));
  RETURN_IF_ERROR(CheckSeconds("vote.sums.split_s", sums.split_s()));
  RETURN_IF_ERROR(CheckSeconds("vote.sums.tensor_parallel_s", sums.tensor_parallel_s()));
  RETURN_IF_ERROR(CheckSeconds("vote.sums.context_parallel_s", sums.context_parallel_s()));
  RETURN_IF_ERROR(CheckSeconds("vote.sums.pipeline_s", sums.pipeline_s()));
  RETURN_IF_ERROR(CheckSeconds("vote.sums.parameters_s", sums.parameters_s()));
  RETURN_IF_ERROR(CheckMemoryBytes("vote.sums.prefix_forward_bytes", sums.prefix_forward_bytes()));
  RETURN_IF_ERROR(CheckMemoryBytes("vote.sums.suffix_bytes", sums.suffix_bytes()));
  RETURN_IF_ERROR(CheckMemoryBytes("vote.sums.prefix_backward_bytes", sums.prefix_backward_bytes()));
  RETURN_IF_ERROR(CheckMemoryBytes("vote.sums.peak_bytes", sums.peak_bytes()));
  RETURN_IF_ERROR(CheckMemoryBytes("vote.sums.state_bytes", sums.state_bytes()));
  return CheckMemoryBytes("vote.sums.host_bytes", sums.host_bytes());
}

// A reason that the server does not know is no breach: such a no vote is INTERNAL.
absl::Status Check(const internal::v1::Vote& vote) {
  RETURN_IF_ERROR(Check(vote.key()));
  if (vote.yes() && vote.no_reason() != internal::v1::NO_VOTE_REASON_UNSPECIFIED) {
    return WrongField("vote.no_reason", absl::StrCat("is ", vote.no_reason(), " in a yes vote"));
  }
  if (vote.grad_norm_squared() < 0) {
    return WrongField("vote.grad_norm_squared", absl::StrCat("is ", vote.grad_norm_squared()));
  }
  RETURN_IF_ERROR(CheckSpans("vote.spans", vote.spans()));
  return Check(vote.sums());
}

absl::Status Check(const internal::v1::Applied& applied) {
  RETURN_IF_ERROR(Check(applied.key()));
  RETURN_IF_ERROR(CheckLength("applied.nonfinite", applied.nonfinite(), kTextBytesMax));
  RETURN_IF_ERROR(CheckLength("applied.weights_digest", applied.weights_digest(), kReasonBytesMax));
  RETURN_IF_ERROR(CheckSeconds("applied.gather_s", applied.gather_s()));
  RETURN_IF_ERROR(CheckSpans("applied.spans", applied.spans()));
  return CheckSeconds("applied.apply_s", applied.apply_s());
}

absl::Status Check(const internal::v1::VerifyDone& done) {
  RETURN_IF_ERROR(CheckLength("verify_done.id", done.id(), kIdBytesMax));
  RETURN_IF_ERROR(Check(done.reuse()));
  RETURN_IF_ERROR(Check(done.dense()));
  RETURN_IF_ERROR(CheckSeconds("verify_done.reuse_s", done.reuse_s()));
  RETURN_IF_ERROR(CheckSeconds("verify_done.dense_s", done.dense_s()));
  for (const internal::v1::GradientError& gradient : done.gradients()) {
    RETURN_IF_ERROR(CheckName("verify_done.gradients.name", gradient.name()));
    for (const double squared : {gradient.error_squared(), gradient.dense_squared()}) {
      if (!(squared >= 0)) return WrongField("verify_done.gradients", absl::StrCat("has a square of ", squared));
    }
  }
  return absl::OkStatus();
}

absl::Status Check(const internal::v1::SaveStaged& staged) {
  RETURN_IF_ERROR(CheckLength("save_staged.id", staged.id(), kIdBytesMax));
  return CheckSeconds("save_staged.staged_s", staged.staged_s());
}

// What its parts say is checked against the files.
absl::Status Check(const internal::v1::SaveDone& done) {
  RETURN_IF_ERROR(CheckLength("save_done.id", done.id(), kIdBytesMax));
  RETURN_IF_ERROR(CheckLength("save_done.weights_digest", done.weights_digest(), kReasonBytesMax));
  for (const internal::v1::CheckpointPart& part : done.parts()) {
    RETURN_IF_ERROR(CheckLength("save_done.parts.file", part.file(), kIdBytesMax));
    RETURN_IF_ERROR(CheckLength("save_done.parts.sha256", part.sha256(), kReasonBytesMax));
  }
  return absl::OkStatus();
}

// Cut at a character's begin, so that the text stays UTF-8.
std::string_view Cut(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  size_t end = bytes_max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

bool IsErrorCode(uint32_t code) { return code >= 1 && code <= 16; }

}  // namespace

absl::Status CheckWorkerMessage(const WorkerMessage& message) {
  switch (message.message_case()) {
    case WorkerMessage::kRegister:
      return Check(message.register_());
    case WorkerMessage::kReady:
      return Check(message.ready());
    case WorkerMessage::kHeartbeat:
      return CheckLength("heartbeat.phase", message.heartbeat().phase(), kReasonBytesMax);
    case WorkerMessage::kVote:
      return Check(message.vote());
    case WorkerMessage::kApplied:
      return Check(message.applied());
    case WorkerMessage::kResults:
      return CheckLength("results.id", message.results().id(), kIdBytesMax);
    case WorkerMessage::kLogProbDone:
      return CheckLength("log_prob_done.id", message.log_prob_done().id(), kIdBytesMax);
    case WorkerMessage::kVerifyDone:
      return Check(message.verify_done());
    case WorkerMessage::kExportDone:
      return CheckLength("export_done.id", message.export_done().id(), kIdBytesMax);
    case WorkerMessage::kSaveStaged:
      return Check(message.save_staged());
    case WorkerMessage::kSaveDone:
      return Check(message.save_done());
    case WorkerMessage::kRefused:
      return Check(message.refused().key());
    case WorkerMessage::kStoreOpened:
      return Check(message.store_opened());
    case WorkerMessage::MESSAGE_NOT_SET:
      break;
  }
  return WrongField("the message", "is of a kind that this server does not know");
}

std::string WorkerText(std::string_view text) {
  std::string line(Cut(text, kTextBytesMax));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); }, ' ');
  return line.size() < text.size() ? line + "..." : line;
}

absl::Status FailureOfWorker(const v1::Failure& failure) {
  v1::Failure checked = failure;
  if (!IsErrorCode(failure.code())) {
    checked.set_code(static_cast<uint32_t>(absl::StatusCode::kInternal));
    checked.set_reason(std::string(RowOf(Reason::kInternal).name));
  }
  if (!FindReason(failure.reason())) checked.set_reason(std::string(RowOf(Reason::kInternal).name));
  checked.set_message(WorkerText(failure.message()));
  if (failure.metadata_size() > kMetadataMax) checked.clear_metadata();
  return FromFailure(checked);
}

}  // namespace stemma::server
