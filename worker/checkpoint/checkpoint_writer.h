// Writes what a rank owns of a checkpoint's files. One that is cancelled, or fails, leaves files in its folder: the
// server, which made that, removes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_directory.h"
#include "common/model/safetensors.h"
#include "stemma/internal/v1/checkpoint.pb.h"
#include "worker/checkpoint/checkpoint_layout.h"
#include "worker/checkpoint/staged_states.h"

namespace stemma::worker {

using CheckpointParts = std::vector<internal::v1::CheckpointPart>;

struct CheckpointFiles {
  std::string folder;  // is there, with its folder kMomentsFolder
  uint32_t rank = 0;
  std::vector<FileShare> shares;
  // Config, tokenizer, chat templates and index are made from it; null: another rank writes them.
  const ModelDirectory* source = nullptr;
  safetensors::Dtype dtype = safetensors::Dtype::kF32;
  std::string index;  // its content; written where the source has one
};

// Returns a part for each file that it wrote; all are on the disk. Errors: Cancelled - `cancelled` was true;
// InvalidArgument - the source's config has changed since it was loaded; ResourceExhausted - the host has no memory for
// it; the file system's.
absl::StatusOr<CheckpointParts> WriteCheckpointFiles(const CheckpointFiles& files, const PieceReader& read,
                                                     const std::atomic<bool>& cancelled);

}  // namespace stemma::worker
