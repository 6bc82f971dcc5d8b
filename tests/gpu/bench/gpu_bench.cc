// What a GPU does with Stemma's engine, part by part, into report.json. Driven by tests/gpu/gpu_check.sh, which runs
// each part in a process of its own; docs/gpu.md says how to read what comes out.
//
//   gpu_bench --report FILE [--device cuda:0] [--only rates,dense] [--seconds 900] [--layers 0] [--rows TEXT] [--tiny]
//   gpu_bench --list                      name, seconds and meaning of each part, one a line
//   gpu_bench --report FILE --add-test NAME --result FILE --status N    keeps the result of a test binary
//   gpu_bench --report FILE --about FILE [--date D] [--hardware H]      keeps which build this is of, when and where it
//   ran
//
// Goes through worker/backend/device.h and links no CUDA. Exit status: 0 what was asked for was measured or written as
// not measured; 1 the device cannot be opened, or a part could not begin.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "common/base/device_name.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"
#include "tests/gpu/bench/parts.h"
#include "tests/gpu/bench/test_results.h"
#include "worker/engine/open_device.h"

namespace stemma::testing {
namespace {

constexpr uint64_t kAboutBytesMax = 1 << 20;

constexpr Part kParts[] = {
    {"self_check", "what the check at start admits, by dtype and model", 60, RunSelfCheckPart},
    {"rates", "products, attention and copies of this device", 60, RunRates},
    {"dense", "one dense trajectory through as many layers as fit: MFU, the head apart", 60, RunDense},
    {"reuse", "four splits x N up to 16 beside dense and the FLOP ideals", 240, RunReuse},
    {"offload", "a tape that leaves the device, of as many layers as fit: bytes, seconds", 90, RunOffload},
    {"memory", "all tape policies, of eight layers: bytes, seconds, waits", 150, RunMemory},
    {"qwen3", "Qwen3-8B's shape, dense and reuse", 60, RunQwen},
    {"kernels", "each fused kernel beside the rate of a copy", 30, RunKernels},
    {"capacity", "the longest groups that run", 180, RunCapacity},
    {"waves", "1, 2, 4 and 8 suffixes a wave", 120, RunWaves},
    {"optimizer", "the update with states on the device and in host memory", 60, RunOptimizer},
    {"reuse_large", "the four splits with N = 32 and 128", 700, RunReuseLarge},
};

// Says in one line what went wrong; returns the exit status.
int Complain(const absl::Status& status) {
  std::cerr << "gpu_bench: " << status.message() << std::endl;
  return 1;
}

std::string ScratchFolder() {
  std::string pattern = std::filesystem::temp_directory_path().string() + "/stemma-gpu-bench-XXXXXX";
  CHECK(mkdtemp(pattern.data()) != nullptr) << pattern;
  return pattern;
}

int RunParts(const BenchOptions& options, const std::vector<std::string>& only) {
  const absl::StatusOr<DeviceName> name = ParseDevice(options.device);
  if (!name.ok()) return Complain(name.status());
  absl::StatusOr<ReportFile> report = ReportFile::Open(options.report);
  if (!report.ok()) return Complain(report.status());
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice(*name);
  if (!device.ok()) return Complain(device.status());
  BenchRun run(options, *std::move(device), *std::move(report));
  bool began = true;
  for (const Part& part : kParts) {
    if (!only.empty() && std::find(only.begin(), only.end(), part.name) == only.end()) continue;
    run.BeginPart(part.name);
    const absl::Status status = part.run(run);
    began = began && status.ok();
    run.EndPart(status);
  }
  return began ? 0 : 1;
}

absl::Status KeepAbout(const std::string& path, const std::string& about, const std::string& date,
                       const std::string& hardware) {
  ASSIGN_OR_RETURN(ReportFile report, ReportFile::Open(path));
  ASSIGN_OR_RETURN(const std::string text, ReadFile(about, kAboutBytesMax));
  nlohmann::json taken = nlohmann::json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!taken.is_object()) return absl::InvalidArgumentError(about + " is no JSON object");
  taken["date"] = date;
  taken["hardware"] = hardware;
  report.SetTaken(std::move(taken));
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  BenchOptions options;
  std::vector<std::string> only;
  bool list = false;
  TestRun test;
  std::string about, date, hardware;
  CLI::App app("what a GPU does with Stemma's engine");
  app.add_option("--report", options.report);
  app.add_option("--device", options.device);
  app.add_option("--only", only)->delimiter(',');
  app.add_option("--seconds", options.seconds, "no row begins after so many");
  app.add_option("--layers", options.layers, "of the models (default: as many as fit, or as a part says)");
  app.add_option("--rows", options.rows, "only rows whose table or description has this text, e.g. '\"rollouts\":16'");
  app.add_flag("--tiny", options.tiny, "small shapes, to test the bench itself");
  app.add_flag("--profile", options.profile,
               "for ncu --profile-from-start off: some waves of each row, after the others");
  app.add_flag("--list", list);
  app.add_option("--about", about);
  app.add_option("--date", date);
  app.add_option("--hardware", hardware);
  app.add_option("--add-test", test.name);
  app.add_option("--result", test.result_file);
  app.add_option("--status", test.exit_status);
  CLI11_PARSE(app, argc, argv);
  if (list) {
    for (const Part& part : kParts) std::cout << part.name << " " << part.seconds << " " << part.what << std::endl;
    return 0;
  }
  for (const std::string& name : only) {
    const auto is_named = [&](const Part& part) { return part.name == name; };
    if (std::none_of(std::begin(kParts), std::end(kParts), is_named)) {
      return Complain(absl::InvalidArgumentError("--only " + name + ": no such part; --list names them"));
    }
  }
  if (options.report.empty()) return Complain(absl::InvalidArgumentError("--report FILE is missing"));
  if (!about.empty()) {
    const absl::Status kept = KeepAbout(options.report, about, date, hardware);
    return kept.ok() ? 0 : Complain(kept);
  }
  if (!test.name.empty()) {
    absl::StatusOr<ReportFile> report = ReportFile::Open(options.report);
    if (!report.ok()) return Complain(report.status());
    AddTestRun(test, *report);
    return 0;
  }
  options.scratch = ScratchFolder();
  const int status = RunParts(options, only);
  std::filesystem::remove_all(options.scratch);
  return status;
}

}  // namespace
}  // namespace stemma::testing

int main(int argc, char** argv) { return stemma::testing::Main(argc, argv); }
