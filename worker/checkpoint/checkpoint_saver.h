// Saves what this rank owns of the training state. Owned by the engine, called on its thread.
//
// The state as it is in Save is copied to host memory, and written from there on a thread of the saver's own while the
// engine goes on. Where the host has no room for the copy the files are written in Save itself. No rank waits for
// another: which save is whole is the server's to say.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/base/system_memory.h"
#include "common/model/model_directory.h"
#include "stemma/internal/v1/worker.pb.h"
#include "worker/checkpoint/save_answers.h"
#include "worker/checkpoint/save_thread.h"
#include "worker/model/weights.h"
#include "worker/optim/ranges.h"

namespace stemma::worker {

struct SaverOptions {
  std::string checkpoints;      // the folder of all of them
  uint32_t rank = 0;            // in the mesh; rank 0 writes headers and what is no tensor
  int64_t ranks_of_memory = 1;  // that share the host's memory: all of them save at the same time
  std::function<int64_t()> available_bytes = AvailableMemoryBytes;  // of the host
};

class CheckpointSaver {
 public:
  // `weights` and `source`, the model directory that gives names and other files, outlive this. `owned`: as
  // OptimizerShards::owned.
  CheckpointSaver(const Weights& weights, const ModelDirectory& source, ParameterRanges owned, SaverOptions options);

  // Stages the state, and writes it beside other work. `weights_digest`: that all ranks tell, MeshDigest of the weights
  // as they are. OK: both answers were given, or will be. Errors, then none is: FailedPrecondition - the last one is
  // still being written; InvalidArgument - the folder is no name; where the files were written here,
  // WriteCheckpointFiles's. Throws as LibTorch does, with no answer given.
  absl::Status Save(const internal::v1::Save& request, const std::string& weights_digest, const SaveAnswers& answers);

 private:
  absl::Status SaveReserved(const internal::v1::Save& request, const std::string& weights_digest,
                            const SaveAnswers& answers);

  const Weights& weights_;
  const ModelDirectory& source_;
  const ParameterRanges owned_;
  const SaverOptions options_;
  std::string folder_;  // of the last save
  SaveThread thread_;   // its job ends before the other members do
};

}  // namespace stemma::worker
