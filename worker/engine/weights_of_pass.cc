#include "worker/engine/weights_of_pass.h"

#include <string>

#include "common/base/error.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "worker/checkpoint/checkpoint_loader.h"
#include "worker/engine/load_state.h"
#include "worker/model/weights_digest.h"

namespace stemma::worker {
namespace {

// What is wrong with the files of a checkpoint is its damage, however it shows: one that is cut, gone or of another
// model.
absl::Status AsDamage(const absl::Status& status) {
  const bool is_of_files = absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
                           absl::IsPermissionDenied(status) || absl::IsDataLoss(status);
  return is_of_files ? MakeError(Reason::kCorruptCheckpoint, std::string(status.message())) : status;
}

}  // namespace

absl::Status WeightsOfPass::Read() {
  if (!of_checkpoint()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckFileName(wanted_.checkpoint()));
  const ParameterOwners owners = {ranks_.data->rank(), ranks_.data->size(), own_.is_sharded()};
  absl::StatusOr<Weights> read = LoadCheckpointWeights(CheckpointFolder(configure_, wanted_.checkpoint()), own_.shard,
                                                       own_.run_dtype, backend_.device, owners);
  if (!read.ok()) return AsDamage(read.status());
  read_ = *std::move(read);
  return absl::OkStatus();
}

absl::Status WeightsOfPass::CheckDigest() const {
  if (!of_checkpoint() || wanted_.weights_digest().empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string digest,
                   MeshDigest(read_, backend_.kernels, {*ranks_.tp, *ranks_.pp, *ranks_.data}));
  return CheckWeightsDigest(CheckpointFolder(configure_, wanted_.checkpoint()), digest, wanted_.weights_digest());
}

void WeightsOfPass::Use(PassOptions& options) {
  if (!of_checkpoint()) return;
  options.context.weights = &read_;
  if (read_.is_sharded()) options.UseUnits(&units_.emplace(*ranks_.data, read_));
}

}  // namespace stemma::worker
