// What a GPU does with Stemma's engine, part by part, into report.json. Driven by tests/gpu/gpu_check.sh, which runs
// each part in a process of its own; docs/gpu.md says how to read what comes out.
//
//   gpu_bench --report FILE [--device cuda:0] [--only rates,dense] [--seconds 900] [--layers 0] [--rows TEXT] [--tiny]
//   gpu_bench --list                      name, seconds and meaning of each part, one a line
//   gpu_bench --report FILE --begin-part tests                          begins a part that another process fills
//   gpu_bench --report FILE --add-test NAME --result FILE --status N --took SECONDS    keeps a test binary's result
//   gpu_bench --report FILE --add-test NAME --out-of-time               says that it did not begin
//   gpu_bench --report FILE --end-part NAME --status N --took SECONDS   ends a part that its process left running
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

std::string ScratchFolder() {
  std::string pattern = std::filesystem::temp_directory_path().string() + "/stemma-gpu-bench-XXXXXX";
  CHECK(mkdtemp(pattern.data()) != nullptr) << pattern;
  return pattern;
}

// What a command line asks for.
struct Asked {
  BenchOptions options;
  std::vector<std::string> only;
  bool list = false;
  std::string about, date, hardware, begin_part, end_part;
  TestRun test;
};

absl::StatusOr<nlohmann::json> ReadAbout(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kAboutBytesMax));
  nlohmann::json about = nlohmann::json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!about.is_object()) return absl::InvalidArgumentError(path + " is no JSON object");
  return about;
}

absl::Status KeepAbout(const Asked& asked, ReportFile& report) {
  ASSIGN_OR_RETURN(nlohmann::json taken, ReadAbout(asked.about));
  taken["date"] = asked.date;
  taken["hardware"] = asked.hardware;
  report.SetTaken(std::move(taken));
  return absl::OkStatus();
}

// Says of which build a report is that gpu_check.sh did not begin: a bundle's about.json lies above bin/.
void KeepAboutOfBundle(ReportFile& report) {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return;
  absl::StatusOr<nlohmann::json> about = ReadAbout(own.parent_path().parent_path() / "about.json");
  if (!about.ok()) return;
  const nlohmann::json& taken = report.taken();
  if (taken.is_object() && taken.value("commit", "") == about->value("commit", "")) return;
  (*about)["date"] = Today();
  report.SetTaken(*std::move(about));
}

absl::StatusOr<std::unique_ptr<Device>> OpenNamed(const std::string& device) {
  ASSIGN_OR_RETURN(const DeviceName name, ParseDevice(device));
  return OpenDevice(name);
}

// Error: a part could not begin.
absl::Status RunParts(const Asked& asked, std::unique_ptr<Device> device, ReportFile report) {
  BenchRun run(asked.options, std::move(device), std::move(report));
  absl::Status worst;
  for (const Part& part : kParts) {
    if (!asked.only.empty() && std::find(asked.only.begin(), asked.only.end(), part.name) == asked.only.end()) continue;
    worst.Update(run.RunPart(part.name, part.run));
  }
  return worst;
}

absl::Status RunWithScratch(Asked asked, ReportFile report) {
  KeepAboutOfBundle(report);
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenNamed(asked.options.device));
  asked.options.scratch = ScratchFolder();
  asked.options.records = asked.options.report + ".logs";
  const absl::Status status = RunParts(asked, std::move(device), std::move(report));
  std::filesystem::remove_all(asked.options.scratch);
  return status;
}

absl::Status Run(const Asked& asked) {
  for (const std::string& name : asked.only) {
    const auto is_named = [&](const Part& part) { return part.name == name; };
    if (std::none_of(std::begin(kParts), std::end(kParts), is_named)) {
      return absl::InvalidArgumentError("--only " + name + ": no such part; --list names them");
    }
  }
  if (asked.options.report.empty()) return absl::InvalidArgumentError("--report FILE is missing");
  ASSIGN_OR_RETURN(ReportFile report, ReportFile::Open(asked.options.report));
  if (!asked.about.empty()) return KeepAbout(asked, report);
  if (!asked.begin_part.empty()) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, OpenNamed(asked.options.device));
    report.Begin(asked.begin_part, OriginOn(*device, asked.options.tiny));
    return absl::OkStatus();
  }
  if (!asked.test.name.empty()) {
    AddTestRun(asked.test, report);
    return absl::OkStatus();
  }
  if (!asked.end_part.empty()) {
    report.EndLeft(asked.end_part, asked.test.exit_status, asked.test.took_s);
    return absl::OkStatus();
  }
  return RunWithScratch(asked, std::move(report));
}

int Main(int argc, char** argv) {
  Asked asked;
  BenchOptions& options = asked.options;
  CLI::App app("what a GPU does with Stemma's engine");
  app.add_option("--report", options.report);
  app.add_option("--device", options.device);
  app.add_option("--only", asked.only)->delimiter(',');
  app.add_option("--seconds", options.seconds, "no row begins after so many");
  app.add_option("--layers", options.layers, "of the models (default: as many as fit, or as a part says)");
  app.add_option("--rows", options.rows, "only rows whose table or description has this text, e.g. '\"rollouts\":16'");
  app.add_flag("--tiny", options.tiny, "small shapes, to test the bench itself");
  app.add_flag("--profile", options.profile,
               "for ncu --profile-from-start off: some waves of each row, after the others");
  app.add_flag("--list", asked.list);
  app.add_option("--about", asked.about);
  app.add_option("--date", asked.date);
  app.add_option("--hardware", asked.hardware);
  app.add_option("--begin-part", asked.begin_part);
  app.add_option("--add-test", asked.test.name);
  app.add_option("--result", asked.test.result_file);
  app.add_flag("--out-of-time", asked.test.out_of_time);
  app.add_option("--end-part", asked.end_part);
  app.add_option("--took", asked.test.took_s);
  app.add_option("--status", asked.test.exit_status);
  CLI11_PARSE(app, argc, argv);
  if (asked.list) {
    for (const Part& part : kParts) std::cout << part.name << " " << part.seconds << " " << part.what << std::endl;
    return 0;
  }
  const absl::Status status = Run(asked);
  if (!status.ok()) std::cerr << "gpu_bench: " << status.message() << std::endl;
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace stemma::testing

int main(int argc, char** argv) { return stemma::testing::Main(argc, argv); }
