#include "worker/engine/load_state.h"

#include <glog/logging.h>

#include <filesystem>

#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "worker/checkpoint/checkpoint_loader.h"

namespace stemma::worker {

std::string CheckpointsFolder(const internal::v1::Configure& configure) {
  return std::filesystem::path(configure.data_directory()) / "checkpoints";
}

std::string CheckpointFolder(const internal::v1::Configure& configure, const std::string& name) {
  return std::filesystem::path(CheckpointsFolder(configure)) / name;
}

namespace {

void WarnOfLeftOutFiles(const ModelDirectory& directory) {
  for (const std::string& file : directory.left_out) {
    LOG(WARNING) << directory.path << ": a file of it will be in no export and no checkpoint: " << file;
  }
}

}  // namespace

absl::StatusOr<Weights> LoadState(const internal::v1::Configure& configure, const ModelDirectory& directory,
                                  const ModelShard& shard, at::ScalarType dtype, at::Device device,
                                  const StateOptions& states) {
  if (configure.rank() == 0) WarnOfLeftOutFiles(directory);
  if (configure.checkpoint().empty()) return LoadWeights(directory, shard, dtype, device, states);
  RETURN_IF_ERROR(CheckFileName(configure.checkpoint()));
  return LoadCheckpoint(CheckpointFolder(configure, configure.checkpoint()), shard, dtype, device, states);
}

}  // namespace stemma::worker
