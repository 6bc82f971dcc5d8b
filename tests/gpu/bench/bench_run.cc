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
  return CheckedBackend(*device_, "bf16", model, options_.scratch);
}

void BenchRun::BeginPart(const std::string& name) {
  part_ = name;
  part_begin_s_ = RealClock().MonotonicSeconds();
  cut_ = false;
  report_.Begin(part_);
}

void BenchRun::EndPart(const absl::Status& status) {
  const std::string state = !status.ok() ? "failed: " + std::string(status.message()) : cut_ ? "out of time" : "done";
  const double seconds = RealClock().MonotonicSeconds() - part_begin_s_;
  report_.End(part_, state, seconds);
  std::cout << part_ << ": " << state << ", " << seconds << " s" << std::endl;
}

bool BenchRun::TimeIsUp() const { return RealClock().MonotonicSeconds() - begin_s_ > options_.seconds; }

bool BenchRun::IsAskedFor(const std::string& table, const json& what) const {
  return absl::StrContains(table + " " + what.dump(), options_.rows);
}

void BenchRun::Row(const std::string& table, json what, const std::function<absl::Status(json& row)>& measure) {
  const bool is_asked_for = IsAskedFor(table, what);
  if (TimeIsUp() || !is_asked_for) {
    cut_ = true;
    what["not_measured"] = is_asked_for ? "out of time" : "not asked for";
    return report_.AddRow(part_, table, std::move(what));
  }
  json row = what;
  const absl::Status status = CatchExceptions([&] { return measure(row); });
  if (!status.ok()) {
    row = std::move(what);
    row["not_measured"] = absl::IsResourceExhausted(status) ? "out of memory" : std::string(status.message());
  }
  std::cout << "  " << table << " " << row.dump() << std::endl;
  report_.AddRow(part_, table, std::move(row));
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
