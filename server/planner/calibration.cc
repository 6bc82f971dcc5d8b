#include "server/planner/calibration.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "server/planner/least_squares.h"

namespace stemma::server {
namespace {

// Residuals are relative: a phase counts by how many percent it is off. A phase that is this small a part of its step
// counts less.
constexpr double kSmallPhase = 0.02;
constexpr double kOutlier = 0.1;  // relative residual from where a phase is weighed down
constexpr double kRidge = 2e-4;   // pulls rates that the samples cannot separate toward the scaled defaults

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

bool IsSeconds(double seconds) { return std::isfinite(seconds) && seconds >= 0; }

Work TotalWork(const CalibrationSample& sample) {
  Work total = sample.work.prefix_forward;
  total += sample.work.suffix;
  total += sample.work.prefix_backward;
  return total;
}

// Two samples are of one shape when all their work agrees within some percent.
std::vector<int> SizesOfWork(const CalibrationSample& sample) {
  std::vector<int> shape;
  for (const double units : TotalWork(sample).units) {
    shape.push_back(static_cast<int>(std::lround(std::log1p(units) / std::log(1.1))));
  }
  return shape;
}

// One phase, its rates in parts of `scaled`.
void AddEquation(const Work& work, double seconds, double total_s, const Rates& scaled,
                 std::vector<Equation>& equations) {
  if (Seconds(work, scaled) <= 0) return;
  const double weight = 1 / (seconds + kSmallPhase * total_s);
  Equation equation = {.factors = {}, .value = weight * seconds};
  for (size_t j = 0; j < work.units.size(); ++j) {
    equation.factors.push_back(weight * work.units[j] * scaled.seconds[j]);
  }
  equations.push_back(std::move(equation));
}

std::string ExpertsText(const ModelConfig& model) {
  if (!model.experts) return "";
  return absl::StrCat(" experts ", model.experts->per_token, "/", model.experts->count);
}

}  // namespace

std::string CalibrationKey(const ModelConfig& model, const v1::RunConfig& run, const std::string& device) {
  return absl::StrCat(model.model_type, " ", model.num_layers, "x", model.hidden_size, " heads ", model.num_heads, "/",
                      model.num_kv_heads, "x", model.head_size, " ffn ", model.ffn_size, ExpertsText(model),
                      " vocabulary ", model.vocab_size, ", ", run.dtype(), ", ", run.threads(), " threads, ", device,
                      run.mesh().dp() > 1 ? absl::StrCat(", dp ", run.mesh().dp()) : "",
                      run.mesh().pp() > 1 ? absl::StrCat(", pp ", run.mesh().pp()) : "",
                      run.mesh().cp() > 1 ? absl::StrCat(", cp ", run.mesh().cp()) : "",
                      run.mesh().tp() > 1 ? absl::StrCat(", tp ", run.mesh().tp()) : "",
                      run.mesh().ep() > 1 ? absl::StrCat(", ep ", run.mesh().ep()) : "",
                      run.optimizer_residency() == v1::HOST ? ", optimizer states in host memory" : "");
}

Calibration::Calibration(const Rates& defaults, const ModelConfig& model)
    : defaults_(defaults), num_parameters_(static_cast<double>(model.num_parameters())), rates_(defaults) {}

void Calibration::Add(const CalibrationSample& sample) {
  if (Keep(sample)) Fit();
}

void Calibration::AddAll(const std::vector<CalibrationSample>& samples) {
  bool any = false;
  for (const CalibrationSample& sample : samples) any = Keep(sample) || any;
  if (any) Fit();
}

bool Calibration::Keep(const CalibrationSample& sample) {
  const PredictedSeconds& s = sample.seconds;
  for (const double seconds : {s.prefix_forward, s.suffix, s.prefix_backward, sample.apply_s}) {
    if (!IsSeconds(seconds)) return false;
  }
  for (const Work& work : {sample.work.prefix_forward, sample.work.suffix, sample.work.prefix_backward}) {
    if (!std::all_of(work.units.begin(), work.units.end(), IsSeconds)) return false;
  }
  if (s.suffix <= 0 || sample.work.suffix[kLinear] <= 0) return false;
  samples_.push_back(sample);
  if (samples_.size() > kSamplesMax) samples_.pop_front();
  return true;
}

void Calibration::Fit() {
  std::set<std::vector<int>> shapes;
  std::vector<double> factors, parameter_s;
  for (const CalibrationSample& sample : samples_) {
    shapes.insert(SizesOfWork(sample));
    factors.push_back(sample.seconds.total() / Seconds(TotalWork(sample), defaults_));
    if (sample.apply_s > 0) parameter_s.push_back(sample.apply_s / num_parameters_);
  }
  rates_ = defaults_;
  rates_.samples = static_cast<int>(samples_.size());
  if (samples_.size() < kSamplesMin || shapes.size() < kShapesMin) return;

  Rates scaled = defaults_;
  const double factor = Median(factors);
  for (double& seconds : scaled.seconds) seconds *= factor;
  // A device that computes slower than by the defaults says nothing of its network.
  for (const LinkRates& link : kLinkRates) {
    scaled[link.byte] = defaults_[link.byte];
    scaled[link.message] = defaults_[link.message];
  }
  if (scaled.copies_overlap) scaled[kCopy] = 0;  // hidden copies are not in the phases' seconds
  std::vector<Equation> equations;
  for (const CalibrationSample& sample : samples_) {
    const PredictedSeconds& s = sample.seconds;
    AddEquation(sample.work.prefix_forward, s.prefix_forward, s.total(), scaled, equations);
    AddEquation(sample.work.suffix, s.suffix, s.total(), scaled, equations);
    AddEquation(sample.work.prefix_backward, s.prefix_backward, s.total(), scaled, equations);
  }
  const double ridge = kRidge * static_cast<double>(equations.size());
  const std::vector<double> x = RobustLeastSquares(equations, kNumRates, ridge, kOutlier);
  for (size_t j = 0; j < rates_.seconds.size(); ++j) rates_.seconds[j] = scaled.seconds[j] * x[j];
  rates_[kParameter] = parameter_s.empty() ? defaults_[kParameter] : Median(parameter_s);
  if (rates_.copies_overlap) rates_[kCopy] = defaults_[kCopy];
  rates_.calibrated = true;
}

}  // namespace stemma::server
