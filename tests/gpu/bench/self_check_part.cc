// What the start-up self-check admits on this device, for the models that the other parts run.
#include <filesystem>
#include <utility>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "tests/gpu/bench/parts.h"
#include "tests/gpu/bench/shapes.h"
#include "tests/gpu/checked_backend.h"

namespace stemma::testing {
namespace {

using nlohmann::json;

constexpr uint64_t kRecordBytesMax = uint64_t{1} << 24;

json KernelsOff(const Backend& backend) {
  json off = json::array();
  for (const KernelOff& kernel : backend.kernels_off)
    off.push_back({{"kernel", kernel.kernel}, {"reason", kernel.reason}});
  return off;
}

// Every record as the check wrote it: worst error and tolerance of each kernel.
json Records(const std::string& folder) {
  json records = json::array();
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const absl::StatusOr<std::string> text = ReadFile(entry.path().string(), kRecordBytesMax);
    if (!text.ok()) continue;
    json record = json::parse(*text, /*cb=*/nullptr, /*allow_exceptions=*/false);
    if (!record.is_discarded()) records.push_back(std::move(record));
  }
  return records;
}

}  // namespace

absl::Status RunSelfCheckPart(BenchRun& run) {
  const DeviceIdentity identity = run.device().identity();
  run.Fact("device", {{"name", identity.name},
                      {"compute_capability", identity.compute_capability},
                      {"driver", identity.driver},
                      {"runtime", identity.runtime},
                      {"torch", identity.torch},
                      {"cublas", identity.cublas},
                      {"cudnn", identity.cudnn},
                      {"build_id", identity.build_id},
                      {"bytes", run.device().memory().bytes},
                      {"free_bytes", run.device().memory().free_bytes}});
  // The seconds are those of a check, not of reading what an earlier one kept.
  std::error_code error;
  std::filesystem::remove_all(run.options().records + "/self_check", error);
  for (const char* dtype : {"bf16", "fp32"}) {
    for (const ModelConfig& model : {LlamaConfig(run.options().tiny), QwenConfig(run.options().tiny)}) {
      run.Row("self_check", {{"dtype", dtype}, {"family", model.model_type}}, [&](json& row) {
        const double begin_s = RealClock().MonotonicSeconds();
        const Backend backend = CheckedBackend(run.device(), dtype, model, run.options().records);
        row["seconds"] = RealClock().MonotonicSeconds() - begin_s;
        row["kernels_off"] = KernelsOff(backend);
        return absl::OkStatus();
      });
    }
  }
  run.Fact("records", Records(run.options().records + "/self_check"));
  return absl::OkStatus();
}

}  // namespace stemma::testing
