#include "server/protocol/calibration_keeper.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/mesh.h"
#include "common/cost/state_bytes.h"
#include "glog/logging.h"
#include "server/protocol/link_reports.h"

namespace stemma::server {
namespace {

constexpr int kUnsavedMax = 8;

Calibration NewCalibration(const ModelConfig& model, const v1::RunConfig& run, const std::string& device,
                           std::span<const v1::LinkInfo> links) {
  const Rates rates = DefaultRates(RunDtypeOf(run.dtype()), run.threads(), device, run.optimizer_residency());
  return {WithLinks(rates, links), model};
}

PredictedSeconds SlowestOf(std::span<const internal::v1::Vote> votes) {
  PredictedSeconds slowest;
  for (const internal::v1::Vote& vote : votes) {
    slowest.prefix_forward = std::max(slowest.prefix_forward, vote.sums().prefix_forward_s());
    slowest.suffix = std::max(slowest.suffix, vote.sums().suffix_s());
    slowest.prefix_backward = std::max(slowest.prefix_backward, vote.sums().prefix_backward_s());
  }
  return slowest;
}

}  // namespace

CalibrationSample SampleOfCopy(const PhaseWork& work, size_t stages, std::span<const internal::v1::Vote> votes,
                               std::span<const internal::v1::Applied> applied) {
  CHECK(stages > 0 && votes.size() % stages == 0) << votes.size() << " ranks of " << stages << " stages";
  CalibrationSample sample;
  sample.work = work;
  const size_t ranks = votes.size() / stages;
  for (size_t stage = 0; stage < stages; ++stage) sample.seconds += SlowestOf(votes.subspan(stage * ranks, ranks));
  for (const internal::v1::Applied& one : applied) sample.apply_s = std::max(sample.apply_s, one.apply_s());
  return sample;
}

CalibrationKeeper::CalibrationKeeper(const ModelConfig& model, CalibrationBook book, const v1::RunConfig& run)
    : model_(model), book_(std::move(book)), calibration_(NewCalibration(model, run, "cpu", {})) {}

void CalibrationKeeper::Start(const std::string& device, const v1::RunConfig& run,
                              std::span<const v1::LinkInfo> links) {
  const std::string name = device.empty() ? "cpu" : device;
  seconds_hold_waits_ = absl::StartsWith(name, "cuda") && (PpSize(run.mesh()) > 1 || ShardsParameters(run));
  key_ = CalibrationKey(model_, run, name);
  calibration_ = NewCalibration(model_, run, name, links);
  if (const auto it = book_.find(key_); it != book_.end()) calibration_.AddAll(it->second);
}

std::string CalibrationKeeper::RatesText() const {
  return rates().calibrated ? absl::StrCat("rates of ", rates().samples, " measured steps")
                            : absl::StrCat("default rates (", rates().source, ")");
}

bool CalibrationKeeper::Add(const CalibrationSample& sample) {
  if (seconds_hold_waits_) return false;
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
