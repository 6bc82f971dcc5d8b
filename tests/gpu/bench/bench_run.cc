#include "tests/gpu/bench/bench_run.h"

#include <dlfcn.h>

#include <algorithm>
#include <iostream>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/clock.h"
#include "glog/logging.h"
#include "tests/gpu/checked_backend.h"
#include "worker/engine/exceptions.h"

namespace stemma::testing {
namespace {

using nlohmann::json;

// Shorter ones would time the launch, and the clock.
constexpr double kLeastRunSeconds = 5e-3;
constexpr int kRepeatsMax = 1000;

double SecondsOf(const Backend& backend, const std::function<void()>& run, int repeats) {
  const auto clock = backend.make_clock();
  const int64_t begin = clock->Mark();
  for (int i = 0; i < repeats; ++i) run();
  const int64_t end = clock->Mark();
  const double end_s = clock->At(end);
  return (end_s - clock->At(begin)) / repeats;
}

// Calls a function of the CUDA runtime, which came with the device's library: this binary links none.
void CallCudaRuntime(const char* name) {
  const auto function = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, name));
  if (function == nullptr || function() != 0) std::cerr << "gpu_bench: no " << name << ": nothing is profiled\n";
}

}  // namespace

PartOrigin OriginOn(const Device& device, bool tiny) {
  const std::string name = device.identity().name;
  return {.device = name.empty() ? "cpu" : name, .date = Today(), .tiny = tiny};
}

ProfiledRange::ProfiledRange() { CallCudaRuntime("cudaProfilerStart"); }
ProfiledRange::~ProfiledRange() { CallCudaRuntime("cudaProfilerStop"); }

double Spread::median() const {
  CHECK(!seconds.empty());
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

json Spread::Json() const {
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  return {{"median", median()}, {"least", *least}, {"most", *most}, {"runs", seconds.size()}};
}

BenchRun::BenchRun(BenchOptions options, std::unique_ptr<Device> device, ReportFile report)
    : options_(std::move(options)),
      device_(std::move(device)),
      report_(std::move(report)),
      begin_s_(RealClock().MonotonicSeconds()) {}

Backend BenchRun::MakeBackend(const ModelConfig& model) const {
  return CheckedBackend(*device_, "bf16", model, options_.records);
}

absl::Status BenchRun::RunPart(const std::string& name, const std::function<absl::Status(BenchRun& run)>& part) {
  part_ = name;
  cut_ = filtered_ = false;
  const double begin_s = RealClock().MonotonicSeconds();
  report_.Begin(part_, OriginOn(*device_, options_.tiny));
  const absl::Status status = CatchExceptions([&] { return part(*this); });
  const std::string state = !status.ok() ? "failed: " + ReasonOf(status)
                            : cut_       ? kOutOfTime
                            : filtered_  ? "not all rows were asked for"
                                         : "done";
  const double seconds = RealClock().MonotonicSeconds() - begin_s;
  report_.End(part_, state, seconds);
  std::cout << part_ << ": " << state << ", " << seconds << " s" << std::endl;
  return status;
}

bool BenchRun::TimeIsUp() const { return RealClock().MonotonicSeconds() - begin_s_ > options_.seconds; }

bool BenchRun::IsAskedFor(const std::string& table, const json& what) const {
  return absl::StrContains(table + " " + what.dump(), options_.rows);
}

void BenchRun::KeepRow(const std::string& table, const json& what, json row) {
  const json& kept = report_.AddRow(part_, table, what, std::move(row));
  cut_ = cut_ || kept.value("not_measured", "") == kOutOfTime || kept.value("cut", false);
  filtered_ = filtered_ || kept.value("not_measured", "") == kNotAskedFor;
}

void BenchRun::Row(const std::string& table, json what, const std::function<absl::Status(json& row)>& measure) {
  const bool is_asked_for = IsAskedFor(table, what);
  json row = what;
  if (TimeIsUp() || !is_asked_for) {
    row["not_measured"] = is_asked_for ? kOutOfTime : kNotAskedFor;
    return KeepRow(table, what, std::move(row));
  }
  const absl::Status status = CatchExceptions([&] { return measure(row); });
  if (!status.ok()) {
    row = what;
    row["not_measured"] = ReasonOf(status);
  }
  std::cout << "  " << table << " " << row.dump() << std::endl;
  KeepRow(table, what, std::move(row));
}

Spread BenchRun::Time(const Backend& backend, const std::function<void()>& run, int runs) const {
  SecondsOf(backend, run, 1);
  const double once_s = SecondsOf(backend, run, 1);
  const int repeats = static_cast<int>(std::clamp(kLeastRunSeconds / std::max(once_s, 1e-9), 1.0, double{kRepeatsMax}));
  Spread spread;
  for (int i = 0; i < runs; ++i) spread.seconds.push_back(SecondsOf(backend, run, repeats));
  return spread;
}

}  // namespace stemma::testing
