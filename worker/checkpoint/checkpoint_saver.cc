#include "worker/checkpoint/checkpoint_saver.h"

#include <atomic>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/failpoint.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "worker/checkpoint/checkpoint_layout.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/checkpoint/staged_states.h"

namespace stemma::worker {
namespace {

internal::v1::SaveDone MakeDone(const std::string& id, const std::string& digest,
                                const absl::StatusOr<CheckpointParts>& parts) {
  internal::v1::SaveDone done;
  done.set_id(id);
  if (!parts.ok()) {
    *done.mutable_failure() = ToFailure(parts.status());
    return done;
  }
  done.set_weights_digest(digest);
  for (const internal::v1::CheckpointPart& part : *parts) *done.add_parts() = part;
  return done;
}

}  // namespace

CheckpointSaver::CheckpointSaver(const Weights& weights, const ModelDirectory& source, ParameterRanges owned,
                                 SaverOptions options)
    : weights_(weights), source_(source), owned_(std::move(owned)), options_(std::move(options)) {}

absl::Status CheckpointSaver::Save(const internal::v1::Save& request, const std::string& weights_digest,
                                   const SaveAnswers& answers) {
  RETURN_IF_ERROR(CheckFolderName(request.folder()));
  if (!thread_.Reserve()) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint ", folder_, " is still being written; save again when it is done"));
  }
  absl::Cleanup release = [this] { thread_.Release(); };
  folder_ = request.folder();
  RETURN_IF_ERROR(SaveReserved(request, weights_digest, answers));
  std::move(release).Cancel();
  return absl::OkStatus();
}

absl::Status CheckpointSaver::SaveReserved(const internal::v1::Save& request, const std::string& weights_digest,
                                           const SaveAnswers& answers) {
  const double start_s = RealClock().MonotonicSeconds();
  const safetensors::Dtype dtype =
      weights_.accumulate_dtype == at::kDouble ? safetensors::Dtype::kF64 : safetensors::Dtype::kF32;
  const std::vector<StateFile> state_files = StateFiles(source_, dtype);
  const bool first = options_.rank == 0;
  CheckpointFiles files = {.folder = absl::StrCat(options_.checkpoints, "/", request.folder()),
                           .rank = options_.rank,
                           .shares = MakeShares(state_files, weights_, owned_, first),
                           .source = first ? &source_ : nullptr,
                           .dtype = dtype,
                           .index = CheckpointIndex(state_files)};
  std::shared_ptr<StagedStates> staged =
      StagedStates::Copy(weights_, files.shares, options_.available_bytes() / options_.ranks_of_memory);
  absl::StatusOr<CheckpointParts> written;
  if (staged == nullptr) {
    const std::atomic<bool> never = false;
    written = WriteCheckpointFiles(files, DirectReader(weights_), never);
    RETURN_IF_ERROR(written.status());
  }
  Failpoint("checkpoint.staged", options_.rank);
  internal::v1::SaveStaged answer;
  answer.set_id(request.id());
  answer.set_staged_bytes(staged == nullptr ? 0 : static_cast<uint64_t>(staged->bytes()));
  answer.set_staged_s(RealClock().MonotonicSeconds() - start_s);
  answers.staged(std::move(answer));
  thread_.Run([this, files = std::move(files), staged = std::move(staged), written = std::move(written),
               digest = weights_digest, id = request.id(),
               done = answers.done](const std::atomic<bool>& cancelled) mutable {
    if (staged != nullptr) written = WriteCheckpointFiles(files, staged->Reader(), cancelled);
    staged = nullptr;  // its memory, before the server hears that it is done
    Failpoint("checkpoint.before_done", options_.rank);
    thread_.Release();
    done(MakeDone(id, digest, written));
  });
  return absl::OkStatus();
}

}  // namespace stemma::worker
