#include "server/protocol/calibration_keeper.h"

#include <utility>

namespace stemma::server {
namespace {

constexpr int kUnsavedMax = 8;

Calibration NewCalibration(const ModelConfig& model, const v1::RunConfig& run, const std::string& device) {
  return {DefaultRates(RunDtypeOf(run.dtype()), run.threads(), device, run.optimizer_residency()), model};
}

}  // namespace

CalibrationKeeper::CalibrationKeeper(const ModelConfig& model, CalibrationBook book, const v1::RunConfig& run)
    : model_(model), book_(std::move(book)), calibration_(NewCalibration(model, run, "cpu")) {}

void CalibrationKeeper::Start(const std::string& device, const v1::RunConfig& run) {
  const std::string name = device.empty() ? "cpu" : device;
  key_ = CalibrationKey(model_, run, name);
  calibration_ = NewCalibration(model_, run, name);
  if (const auto it = book_.find(key_); it != book_.end()) calibration_.AddAll(it->second);
}

bool CalibrationKeeper::Add(const CalibrationSample& sample) {
  calibration_.Add(sample);
  return ++unsaved_ >= kUnsavedMax;
}

std::optional<CalibrationBook> CalibrationKeeper::TakeUnsaved() {
  if (unsaved_ == 0) return std::nullopt;
  unsaved_ = 0;
  book_[key_] = calibration_.samples();
  return book_;
}

}  // namespace stemma::server
