// The engine on the device in fp32 and bf16 against numbers of transformers in float64, kept in golden/
// (golden/make_golden.py made them). The folder is beside the source, or where STEMMA_GPU_GOLDEN says.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "common/base/file.h"
#include "common/model/safetensors.h"
#include "common/trace/trace_json.h"
#include "glog/logging.h"
#include "nlohmann/json.hpp"
#include "tests/gpu/device_steps.h"
#include "tests/gpu/test_device.h"
#include "tests/testing/hf_slices.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace stemma::testing {
namespace {

// fp32 rounds to 2^-24, some forty operations deep; on a CPU 3e-6 was seen.
constexpr double kFp32 = 1e-4;
// bf16 rounds weights and each operation to 2^-9 = 0.002, and some tens of errors add up like a random walk.
constexpr double kBf16 = 1.0 / 12, kBf16Least = 1.0 / 1024;

std::string GoldenFolder(const std::string& name) {
  const char* folder = std::getenv("STEMMA_GPU_GOLDEN");
  return std::string(folder == nullptr ? STEMMA_GPU_GOLDEN_FOLDER : folder) + "/" + name;
}

std::string Read(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, uint64_t{1} << 22);
  CHECK(text.ok()) << text.status();
  return *text;
}

std::map<std::string, at::Tensor> ReadTensors(const std::string& path) {
  const std::string bytes = Read(path);
  const auto header = safetensors::ReadHeader(path);
  CHECK(header.ok()) << header.status();
  std::map<std::string, at::Tensor> tensors;
  for (const safetensors::TensorEntry& entry : header->tensors) {
    CHECK(entry.dtype == safetensors::Dtype::kF64) << entry.name;
    at::Tensor tensor = at::empty(entry.shape, at::kDouble);
    std::memcpy(tensor.mutable_data_ptr(), bytes.data() + entry.begin, entry.end - entry.begin);
    tensors[entry.name] = tensor;
  }
  return tensors;
}

at::Tensor Fp32Numbers(const std::string& bytes) {
  at::Tensor numbers = at::empty({static_cast<int64_t>(bytes.size() / sizeof(float))}, at::kFloat);
  std::memcpy(numbers.mutable_data_ptr(), bytes.data(), bytes.size());
  return numbers.to(at::kDouble);
}

class GoldenDeviceTest : public DeviceTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped()) Start("fp32");
  }

  void Start(const std::string& dtype) {
    folder_ = GoldenFolder(GetParam());
    InProcessOptions options;
    options.run.set_model(folder_ + "/model");
    options.run.set_dtype(dtype);
    options.run.set_schedule(v1::REUSE);
    options.run.set_wave_suffixes(2);
    options.run.set_head_chunk_tokens(32);
    options.run.set_memory_budget_bytes(uint64_t{1} << 30);
    auto config = ReadModelConfig(options.run.model());
    ASSERT_THAT(config, IsOk());
    auto steps = InProcess::Create(options, DeviceBackend(dtype, *config));
    ASSERT_THAT(steps, IsOk());
    steps_ = *std::move(steps);
    auto parsed = ParseTraceRequest(Read(folder_ + "/request.json"));
    ASSERT_THAT(parsed, IsOk());
    request_.update = parsed->header;
    request_.groups = std::move(parsed->groups);
  }

  // The largest error of anything on file, relative to the largest element of its tensor.
  double WorstError(const TrainingRequest& request) {
    EXPECT_THAT(steps_->Load(request), IsOk());
    const auto vote = steps_->Prepare(0);
    EXPECT_TRUE(vote.ok() && vote->yes()) << vote.status();
    double worst = 0;
    int compared = 0;
    for (const auto& [name, expected] : ReadTensors(folder_ + "/expected.safetensors")) {
      const bool is_gradient = name.starts_with("grad.");
      const std::string rest = name.substr(is_gradient ? 5 : 9);
      const at::Tensor actual =
          is_gradient ? steps_->weights().GradSlice(HfTensorOf(steps_->weights(), rest)).to(at::kCPU).to(at::kDouble)
                      : Fp32Numbers(steps_->results().at(rest).log_probs());
      worst = std::max(worst, RelativeError(actual.reshape(expected.sizes()), expected));
      ++compared;
    }
    EXPECT_GE(compared, 10);
    return worst;
  }

  std::string folder_;
  std::unique_ptr<InProcess> steps_;
  TrainingRequest request_;
};

TEST_P(GoldenDeviceTest, AStepIsTheOneOnFile) {
  const double error = WorstError(request_);
  RecordProperty("error", std::to_string(error));
  EXPECT_LT(error, kFp32);
}

TEST_P(GoldenDeviceTest, AStepInBf16IsTheOneOnFileButForItsRounding) {
  Start("bf16");
  const double error = WorstError(request_);
  RecordProperty("error", std::to_string(error));
  EXPECT_GT(error, kBf16Least) << "a run that is nearly exact is none in bf16";
  EXPECT_LT(error, kBf16);
}

TEST_P(GoldenDeviceTest, ControlAnotherTokenIsSeen) {
  v1::PromptGroup& group = request_.groups[0];
  std::string tokens = group.prompt_tokens();
  tokens[0] = static_cast<char>((tokens[0] + 1) % 100);
  group.set_prompt_tokens(tokens);
  EXPECT_GT(WorstError(request_), 10 * kFp32);
  const TrainingRequest changed = request_;
  Start("bf16");
  EXPECT_GT(WorstError(changed), kBf16);
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenDeviceTest, ::testing::Values("llama", "qwen3"),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace
}  // namespace stemma::testing
