// One run of gpu_bench: its device, the time that is left, and where rows go.
//
// Owned by main; parts (parts.h) measure through it. A row that throws, out of device memory above all, is written as
// not measured, and the part goes on.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "nlohmann/json.hpp"
#include "tests/gpu/bench/report_file.h"
#include "tests/testing/namespaces.h"
#include "worker/backend/device.h"

namespace stemma::testing {

struct BenchOptions {
  std::string device = "cuda:0";
  bool tiny = false;     // small shapes: to test the bench itself
  double seconds = 900;  // no row begins after so many
  int64_t layers = 0;    // of the models; 0: as many as fit, or as a part says
  std::string report = {};
  std::string scratch = {};  // folder for models of zeros
  std::string records = {};  // folder for records of the self-check, kept from part to part
  bool profile = false;      // some waves more of each group, where a profiler records them (ProfiledRange)
  std::string rows = {};     // only rows whose table, name or number has this text; empty: all
};

// While it lives, profilers that wait for cudaProfilerStart record (ncu --profile-from-start off).
class ProfiledRange {
 public:
  ProfiledRange();
  ~ProfiledRange();
  ProfiledRange(const ProfiledRange&) = delete;
  ProfiledRange& operator=(const ProfiledRange&) = delete;
};

// Seconds of several runs.
struct Spread {
  std::vector<double> seconds;
  double median() const;
  nlohmann::json Json() const;  // median, least, most, runs
};

// Returns what parts say of themselves that this device measures today.
PartOrigin OriginOn(const Device& device, bool tiny);

class BenchRun {
 public:
  BenchRun(BenchOptions options, std::unique_ptr<Device> device, ReportFile report);

  const BenchOptions& options() const { return options_; }
  const Device& device() const { return *device_; }
  // Makes the checked backend of runs in bf16 of this model; dies where the device fails.
  Backend MakeBackend(const ModelConfig& model) const;

  // Runs one part; what it throws is its error.
  absl::Status RunPart(const std::string& name, const std::function<absl::Status(BenchRun& run)>& part);
  bool TimeIsUp() const;
  bool IsAskedFor(const std::string& table, const nlohmann::json& what) const;
  // Measures one row and writes it: `what` tells it from others, `measure` adds the numbers.
  // A row that was not asked for says so. One that sets "cut" only bounds its number, for want of time.
  void Row(const std::string& table, nlohmann::json what,
           const std::function<absl::Status(nlohmann::json& row)>& measure);
  void Fact(const std::string& name, nlohmann::json value) { report_.SetFact(part_, name, std::move(value)); }

  // Seconds of the device for `run`: two warm-ups, then the median of so many runs. Each run is repeated until it takes
  // some milliseconds.
  Spread Time(const Backend& backend, const std::function<void()>& run, int runs = 5) const;

 private:
  void KeepRow(const std::string& table, const nlohmann::json& what, nlohmann::json row);

  const BenchOptions options_;
  const std::unique_ptr<Device> device_;
  ReportFile report_;
  const double begin_s_;
  std::string part_;
  bool cut_ = false;       // a row of the part has no number, or a bound, for want of time
  bool filtered_ = false;  // a row of the part has none, as it was not asked for
};

}  // namespace stemma::testing
