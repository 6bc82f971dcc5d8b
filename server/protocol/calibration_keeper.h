// The measured speed of the worker's machine: what its applied steps taught, and what earlier runs did.
//
// Plans that were made keep the rates that they were made with. The book is saved now and then, whole: a crash costs
// the steps since then, and no plan. Thread safety: none; owned by CoordinatorState.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "common/model/model_config.h"
#include "server/planner/calibration.h"
#include "stemma/internal/v1/worker.pb.h"
#include "stemma/v1/run_config.pb.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

// Returns what the ranks of one copy of the model took, in their order. Each of its pipeline stages has done a part of
// the work, so of each phase stages add up; within a stage the slowest rank's work is planned.
// REQUIRES: each stage has as many ranks.
CalibrationSample SampleOfCopy(const PhaseWork& work, size_t stages, std::span<const internal::v1::Vote> votes,
                               std::span<const internal::v1::Applied> applied);

class CalibrationKeeper {
 public:
  // `run`: the configuration until a worker comes.
  CalibrationKeeper(const ModelConfig& model, CalibrationBook book, const v1::RunConfig& run);

  // Begins with what the book has of such a device ("": "cpu") under this configuration. `links`: that were measured
  // between the ranks of this generation; they take the place of the default rates, from which fits depart.
  void Start(const std::string& device, const v1::RunConfig& run, std::span<const v1::LinkInfo> links = {});
  const Rates& rates() const { return calibration_.rates(); }
  // Returns "rates of 12 measured steps", or "default rates (published figures of h200)".
  std::string RatesText() const;
  // Returns whether the book should be saved now. A GPU's seconds hold what it waits for other stages and for sharded
  // parameters: nothing is learnt from those.
  bool Add(const CalibrationSample& sample);
  // Returns the book if it holds what was not taken yet.
  std::optional<CalibrationBook> TakeUnsaved();

 private:
  const ModelConfig model_;
  CalibrationBook book_;
  std::string key_;  // of the machine and the model in the book
  Calibration calibration_;
  bool seconds_hold_waits_ = false;
  int unsaved_ = 0;  // samples
};

}  // namespace stemma::server
