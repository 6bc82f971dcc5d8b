// The machine's rates, fitted to what applied steps measured. Pure; kept across runs by server/coordinator.
//
// Thread safety: none; owned by the coordinator thread.
// Invariants:
//  (1) rates are the defaults until kSamplesMin samples of kShapesMin different shapes are known.
//  (2) at most kSamplesMax samples are kept, the newest.
//  (3) nothing here reaches a plan that was made before: plans are frozen when a request is accepted.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "common/model/model_config.h"
#include "server/planner/cost_model.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::server {

// An applied step: its plan's work, and what its phases took.
struct CalibrationSample {
  PhaseWork work;
  PredictedSeconds seconds;
  double apply_s = 0;
};

// Samples by machine and model, as the data directory holds them.
using CalibrationBook = std::map<std::string, std::vector<CalibrationSample>>;

// "llama 8x512 heads 8/4x64 ffn 1408 vocabulary 4096, fp32, 2 threads, cpu": what rates depend on; then ", dp 2" where
// an optimizer step is divided among ranks, likewise ", pp 2", ", cp 2" and ", tp 2", and ", optimizer states in host
// memory" where they are.
std::string CalibrationKey(const ModelConfig& model, const v1::RunConfig& run, const std::string& device);

class Calibration {
 public:
  static constexpr size_t kSamplesMax = 256;
  static constexpr size_t kSamplesMin = 6;
  static constexpr size_t kShapesMin = 3;

  Calibration(const Rates& defaults, const ModelConfig& model);

  // Ignored unless finite, positive in all and with work: a measured step that cannot be one.
  void Add(const CalibrationSample& sample);
  // Adds each, and fits once.
  void AddAll(const std::vector<CalibrationSample>& samples);

  const Rates& rates() const { return rates_; }
  std::vector<CalibrationSample> samples() const { return {samples_.begin(), samples_.end()}; }

 private:
  bool Keep(const CalibrationSample& sample);
  void Fit();

  Rates defaults_;
  double num_parameters_;
  Rates rates_;
  std::deque<CalibrationSample> samples_;
};

}  // namespace stemma::server
