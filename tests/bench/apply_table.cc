#include "tests/bench/apply_table.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "glog/logging.h"
#include "tests/bench/memory_runs.h"
#include "tests/bench/spread.h"
#include "tests/testing/backends.h"
#include "tests/testing/in_process.h"
#include "tests/testing/synthetic.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/memory/cpu_allocator.h"
#include "worker/optim/adamw.h"

namespace stemma::testing {
namespace {

struct Row {
  std::unique_ptr<InProcess> engine;
  int64_t resting_bytes = 0, apply_bytes = 0;  // of the device: between steps, and above that in APPLY
};

Row MakeRow(const std::string& model, uint32_t threads, const std::string& dtype, v1::OptimizerResidency residency) {
  InProcessOptions options;
  options.run.set_model(model);
  options.run.set_dtype(dtype);
  options.run.set_threads(threads);
  options.run.set_optimizer_residency(residency);
  options.run.set_head_chunk_tokens(512);
  options.run.set_memory_budget_bytes(uint64_t{1} << 30);
  const int64_t before = CpuMemoryStats().current_bytes;
  auto engine = InProcess::Create(options, MakeCpuBackend());
  CHECK(engine.ok()) << engine.status();
  Row row;
  row.engine = std::move(engine).value();
  TrainingRequest request = SyntheticRequest({8}, {8, 8}, row.engine->weights().config.vocab_size);
  request.update.mutable_adam()->set_learning_rate(1e-6);
  request.update.mutable_adam()->set_eps(1e-8);
  const absl::Status loaded = row.engine->Load(std::move(request));
  CHECK(loaded.ok()) << loaded;
  for (int i = 0; i < 2; ++i) {  // warm
    const auto vote = row.engine->Prepare(0);
    CHECK(vote.ok() && vote->yes()) << vote.status();
    CHECK(row.engine->Apply(0, *vote).ok());
  }
  row.resting_bytes = CpuMemoryStats().current_bytes - before;
  return row;
}

double MeasureOnce(Row& row) {
  const auto vote = row.engine->Prepare(0);
  CHECK(vote.ok() && vote->yes()) << vote.status();
  ResetPeakBytes();
  const int64_t before = CpuMemoryStats().current_bytes;
  const double start_s = RealClock().MonotonicSeconds();
  CHECK(row.engine->Apply(0, *vote).ok());
  const double seconds = RealClock().MonotonicSeconds() - start_s;
  row.apply_bytes = CpuMemoryStats().peak_bytes - before;
  return seconds;
}

// One call of the operator for all parameters, after a clip in place: what APPLY would be if it checked nothing.
void PlainStep(std::vector<Parameter>& parameters, const v1::AdamParams& adam, double clip, int64_t step) {
  std::vector<at::Tensor> masters, gradients, first, second;
  for (Parameter& p : parameters) {
    if (clip != 1.0) p.grad.mul_(clip);
    masters.push_back(p.master);
    gradients.push_back(p.grad);
    first.push_back(p.exp_avg);
    second.push_back(p.exp_avg_sq);
  }
  const std::vector<at::Tensor> steps(masters.size(),
                                      at::full({}, static_cast<double>(step), at::TensorOptions().dtype(at::kFloat)));
  at::_fused_adamw_(masters, gradients, first, second, /*max_exp_avg_sqs=*/{}, steps, adam.learning_rate(),
                    adam.beta1(), adam.beta2(), adam.weight_decay(), adam.eps(), /*amsgrad=*/false,
                    /*maximize=*/false);
  for (Parameter& p : parameters) {
    if (!p.master_is_weight()) p.weight.copy_(p.master);
  }
}

template <typename Step>
double SecondsOf(const Step& step) {
  const double start_s = RealClock().MonotonicSeconds();
  step();
  return RealClock().MonotonicSeconds() - start_s;
}

// Our step by slabs, which reads what it wrote and keeps the clip out of the gradients, against the plain one.
void PrintChecks(const std::string& model, uint32_t threads, int rounds) {
  std::printf("\n### Apply with its check of what it wrote, against the operator alone\n\n");
  std::printf("| run dtype | clip | operator alone s | Apply s | ratio |\n|---|---|---:|---:|---:|\n");
  const at::NoGradGuard no_grad;
  for (const char* dtype : {"fp32", "bf16"}) {
    const Row row = MakeRow(model, threads, dtype, v1::DEVICE);
    std::vector<Parameter> parameters = row.engine->weights().parameters;
    v1::AdamParams adam;
    adam.set_learning_rate(1e-6);
    adam.set_beta1(0.9);
    adam.set_beta2(0.999);
    adam.set_eps(1e-8);
    adam.set_weight_decay(0.01);
    adam.set_weight_decay_scope(v1::AdamParams::ALL);
    for (const double clip : {1.0, 0.999}) {
      int64_t step = 2;
      const auto seconds =
          InTurns({[&] { return SecondsOf([&] { PlainStep(parameters, adam, clip, ++step); }); },
                   [&] {
                     return SecondsOf([&] {
                       AdamwStep(TestBackend(), parameters, AllRanges(parameters), {adam, clip, ++step});
                     });
                   }},
                  8 * rounds);
      std::printf("| %s | %s | %s | %s | %s |\n", dtype, clip == 1.0 ? "no" : "yes", Spread(seconds[0]).text(3).c_str(),
                  Spread(seconds[1]).text(3).c_str(), RatioOf(seconds[1], seconds[0]).text(2).c_str());
    }
  }
}

}  // namespace

void PrintApply(const std::string& model, uint32_t threads, int rounds) {
  std::printf("\n### Apply, states on the device and in host memory\n\n");
  std::printf(
      "| run dtype | states on the device s | in host memory s | ratio | MiB of device memory between steps | "
      "above that in Apply |\n");
  std::printf("|---|---:|---:|---:|---:|---:|\n");
  for (const char* dtype : {"fp32", "bf16"}) {
    Row device = MakeRow(model, threads, dtype, v1::DEVICE), host = MakeRow(model, threads, dtype, v1::HOST);
    const auto seconds = InTurns({[&] { return MeasureOnce(device); }, [&] { return MeasureOnce(host); }}, 2 * rounds);
    std::printf("| %s | %s | %s | %s | %.1f, %.1f | %.1f, %.1f |\n", dtype, Spread(seconds[0]).text(3).c_str(),
                Spread(seconds[1]).text(3).c_str(), RatioOf(seconds[1], seconds[0]).text(2).c_str(),
                MiB(device.resting_bytes), MiB(host.resting_bytes), MiB(device.apply_bytes), MiB(host.apply_bytes));
  }
  PrintChecks(model, threads, rounds);
}

}  // namespace stemma::testing
