#include "tests/gpu/device_steps.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/model/model_init.h"
#include "glog/logging.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/synthetic.h"
#include "worker/backend/composed/composed_backend.h"

namespace stemma::testing {
namespace {

constexpr uint64_t kBudgetBytes = uint64_t{8} << 30;
constexpr uint64_t kHostBytes = uint64_t{256} << 20;

// Numbers of an fp64 run are fp64, those of another one fp32.
std::vector<double> NumbersOf(const std::string& bytes, bool float64) {
  const size_t count = bytes.size() / (float64 ? sizeof(double) : sizeof(float));
  std::vector<double> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    numbers[i] = float64 ? reinterpret_cast<const double*>(bytes.data())[i]
                         : static_cast<double>(reinterpret_cast<const float*>(bytes.data())[i]);
  }
  return numbers;
}

}  // namespace

ModelConfig ConfigOf(const SmallModel& model) {
  ModelConfig config = SyntheticModel({.hidden = 256,
                                       .layers = model.layers,
                                       .heads = 256 / model.head_size,
                                       .kv_heads = model.head_size == 64 ? 2 : 1,
                                       .head_size = model.head_size,
                                       .ffn = 352,
                                       .vocab = model.vocab});
  config.SetFamily(*FindFamily(model.family));
  return config;
}

ModelFolder::ModelFolder(const SmallModel& model, uint64_t seed) : config_(ConfigOf(model)) {
  std::string pattern = ::testing::TempDir() + "/stemma-gpu-XXXXXX";
  CHECK(mkdtemp(pattern.data()) != nullptr) << pattern;
  path_ = pattern + "/model";
  const absl::Status written = WriteRandomModel(
      config_, {.seed = seed, .dtype = safetensors::Dtype::kBF16, .weight_std = model.weight_std, .norm_std = 0.1},
      path_);
  CHECK(written.ok()) << written;
}

ModelFolder::~ModelFolder() { std::filesystem::remove_all(std::filesystem::path(path_).parent_path()); }

std::string Way::Text() const {
  return absl::StrCat(dtype, ", ", v1::Schedule_Name(schedule), ", prefix ", v1::TapePolicy_Name(prefix), ", suffix ",
                      v1::TapePolicy_Name(suffix), ", blocks of ", block_rows, offload ? ", offload, headroom " : "",
                      offload ? absl::StrCat(headroom_bytes) : "", ", ", wave_suffixes, " suffixes a wave");
}

std::unique_ptr<InProcess> MakeSteps(const ModelFolder& model, const Way& way, Backend backend) {
  InProcessOptions options;
  options.run.set_model(model.path());
  options.run.set_dtype(way.dtype);
  options.run.set_schedule(way.schedule);
  options.run.set_wave_suffixes(way.wave_suffixes);
  options.run.set_head_chunk_tokens(way.head_chunk_rows);
  options.run.set_memory_budget_bytes(kBudgetBytes);
  options.run.set_host_memory_bytes(kHostBytes);
  options.run.set_optimizer_residency(way.residency);
  options.run.set_threads(way.dtype == "fp64" ? 1 : 2);
  options.edit_step = [way](v1::StepPlan& step) {
    for (v1::Cluster& cluster : *step.mutable_clusters()) {
      cluster.set_prefix_policy(way.prefix);
      cluster.set_suffix_policy(way.suffix);
      cluster.set_prefix_block_rows(way.block_rows);
      cluster.set_offload_prefix(way.offload);
      cluster.set_offload_headroom_bytes(way.headroom_bytes);
    }
  };
  auto steps = InProcess::Create(options, std::move(backend));
  CHECK(steps.ok()) << steps.status();
  return *std::move(steps);
}

StepNumbers RunStep(InProcess& steps, const TrainingRequest& request) {
  EXPECT_THAT(steps.Load(request), IsOk());
  const auto vote = steps.Prepare(0);
  EXPECT_THAT(vote, IsOk());
  if (!vote.ok()) return {};
  EXPECT_TRUE(vote->yes()) << vote->message();
  if (!vote->yes()) return {};
  StepNumbers numbers;
  numbers.sums = vote->sums();
  for (const HfTensor& tensor : steps.weights().hf_tensors) {
    numbers.gradients[tensor.name] = steps.weights().GradSlice(tensor).to(at::kCPU).to(at::kDouble).clone();
  }
  const bool float64 = steps.weights().run_dtype == at::kDouble;
  for (const auto& [id, result] : steps.results()) numbers.log_probs[id] = NumbersOf(result.log_probs(), float64);
  return numbers;
}

StepNumbers TruthOf(const ModelFolder& model, const TrainingRequest& request) {
  const auto steps = MakeSteps(model, {.dtype = "fp64", .schedule = v1::DENSE}, MakeComposedBackend());
  return RunStep(*steps, request);
}

std::map<std::string, double> ErrorsOf(const StepNumbers& a, const StepNumbers& truth) {
  EXPECT_EQ(a.gradients.size(), truth.gradients.size());
  EXPECT_EQ(a.log_probs.size(), truth.log_probs.size());
  std::map<std::string, double> errors;
  for (const auto& [name, expected] : truth.gradients) {
    if (!a.gradients.contains(name)) continue;
    const double size = expected.norm().item<double>();
    errors[name] = (a.gradients.at(name) - expected).norm().item<double>() / (size > 0 ? size : 1);
  }
  double squares = 0;
  size_t count = 0;
  for (const auto& [id, expected] : truth.log_probs) {
    EXPECT_TRUE(a.log_probs.contains(id) && a.log_probs.at(id).size() == expected.size()) << id;
    if (!a.log_probs.contains(id) || a.log_probs.at(id).size() != expected.size()) continue;
    for (size_t i = 0; i < expected.size(); ++i) squares += std::pow(a.log_probs.at(id)[i] - expected[i], 2);
    count += expected.size();
  }
  errors["log-probs"] = std::sqrt(squares / static_cast<double>(std::max<size_t>(count, 1)));
  return errors;
}

}  // namespace stemma::testing
