// What the coordinator's state machine is told once, at its begin. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/model/model_config.h"
#include "server/planner/calibration.h"
#include "stemma/internal/v1/journal.pb.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::server {

// What a journal takes on the disk: its last snapshot, and the rows behind it, without their frames.
struct JournalBytes {
  uint64_t snapshot = 0, rows = 0;
};

struct CoordinatorOptions {
  uint64_t epoch = 1;                                      // of this start; the journal's is lower
  internal::v1::JournalState journal;                      // of earlier starts
  JournalBytes journal_bytes;                              // likewise
  uint64_t journal_rows = 0;                               // the number of the last row
  std::vector<internal::v1::KnownCheckpoint> checkpoints;  // that were found on the disk, in the order of their steps
  std::vector<std::string> other_folders;  // beside them: damaged ones, whose names none that is saved can have
  std::string resume;                      // the checkpoint with which a new journal begins; empty: the model directory
  bool keeps_files = false;                // there is a disk: checkpoints can be saved
  std::string lineage_prefix;              // random for each start: lineages are "<prefix>-1", "<prefix>-2", ...
  std::string version;                     // that clients are told
  std::string worker_version;              // that workers have to have
  std::string data_directory;
  v1::RunConfig config;  // limits filled in
  ModelConfig model;
  CalibrationBook calibration;                             // of earlier runs
  absl::Duration worker_lost_after = absl::Seconds(10);    // without any message; > 3 heartbeats of 1 s
  absl::Duration worker_stalled_after = absl::Minutes(5);  // without progress of its job, at the least
  absl::Duration worker_return_within = absl::Minutes(5);  // else open jobs answer ATTEMPTS_EXHAUSTED
  uint32_t attempts_max = 3;                               // of one step
  uint32_t losses_again_max = 10;                          // of workers, in a row, while a decided step was computed
};

}  // namespace stemma::server
