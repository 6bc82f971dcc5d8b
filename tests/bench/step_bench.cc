// Seconds of forward and backward of one prompt group, reuse against dense, on this machine; tests/bench/bench.py is
// the other side. Neither optimizer nor RPC is counted.
//
//   step_bench --model DIR --shapes 1024/256/8,2048/128/16 --pairs 5 --threads 2 [--dtype fp32]
//     one JSON line per shape: seconds of interleaved pairs, FLOPs, tokens, peak and planned bytes, time by op
//   step_bench --model DIR --threads 2 --serve
//     reads "dense P/R/N", "reuse P/R/N" or "mm" from stdin, answers seconds (mm: GFLOP/s) each
//
// A shape is prompt tokens / response tokens / rollouts.
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/record_function.h>
#include <glog/logging.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::testing {
namespace {

struct Shape {
  int prompt = 0, response = 0, rollouts = 0;
};

Shape ParseShape(const std::string& text) {
  Shape shape;
  char slash;
  std::istringstream in(text);
  in >> shape.prompt >> slash >> shape.response >> slash >> shape.rollouts;
  CHECK(in) << "a shape is prompt/response/rollouts, not " << text;
  return shape;
}

TrainingRequest MakeRequest(const Shape& shape, int64_t vocab, v1::Schedule schedule) {
  std::mt19937 random(7);
  TrainingRequest request;
  v1::UpdateHeader& header = request.update;
  header.mutable_request()->set_schedule(schedule);
  header.mutable_loss()->set_loss_mode("vanilla");
  header.mutable_loss()->set_clip_ratio_low(0.2);
  header.mutable_loss()->set_clip_ratio_high(0.2);
  header.mutable_loss()->set_loss_agg_mode("token-mean");
  header.mutable_loss()->set_temperature(1.0);
  header.mutable_old()->set_from(v1::LogProbSource::ON_POLICY);
  v1::PromptGroup group;
  group.set_uid("g");
  group.set_prompt_tokens(SyntheticTokens(random, shape.prompt, vocab));
  for (int i = 0; i < shape.rollouts; ++i) {
    v1::Rollout& rollout = *group.add_rollouts();
    rollout.set_rollout_id(std::to_string(i));
    rollout.set_response_tokens(SyntheticTokens(random, shape.response, vocab));
    rollout.set_advantage(i % 2 == 0 ? 0.5 : -0.5);
  }
  request.groups.push_back(std::move(group));
  return request;
}

// Exclusive seconds of each op of ours, from the scopes that worker/ops opens.
class OpTimes {
 public:
  static void Install() {
    at::addGlobalCallback(at::RecordFunctionCallback(&Enter, &Leave).scopes({at::RecordScope::USER_SCOPE}));
  }
  static std::map<std::string, double>& seconds() {
    static std::map<std::string, double> by_name;
    return by_name;
  }

 private:
  struct Open : at::ObserverContext {
    double start_s = 0, inner_s = 0;
    Open* outer = nullptr;
  };
  static Open*& current() {
    static thread_local Open* open = nullptr;
    return open;
  }
  static std::unique_ptr<at::ObserverContext> Enter(const at::RecordFunction&) {
    auto open = std::make_unique<Open>();
    open->start_s = RealClock().MonotonicSeconds();
    open->outer = current();
    current() = open.get();
    return open;
  }
  static void Leave(const at::RecordFunction& function, at::ObserverContext* context) {
    auto* open = static_cast<Open*>(context);
    const double total_s = RealClock().MonotonicSeconds() - open->start_s;
    seconds()[function.name()] += total_s - open->inner_s;
    current() = open->outer;
    if (open->outer != nullptr) open->outer->inner_s += total_s;
  }
};

struct StepTime {
  double seconds = 0;
  internal::v1::StepSums sums;
};

class Bench {
 public:
  explicit Bench(std::unique_ptr<InProcess> engine) : engine_(std::move(engine)) {}

  StepTime Run(const Shape& shape, v1::Schedule schedule) {
    CHECK(engine_->Load(MakeRequest(shape, engine_->weights().config.vocab_size, schedule)).ok());
    const double start_s = RealClock().MonotonicSeconds();
    const auto vote = engine_->Prepare(0);
    StepTime time;
    time.seconds = RealClock().MonotonicSeconds() - start_s;
    CHECK(vote.ok() && vote->yes()) << vote.status() << vote->message();
    time.sums = vote->sums();
    return time;
  }
  const v1::PlanReport& report() const { return engine_->plan().report; }

 private:
  std::unique_ptr<InProcess> engine_;
};

// The machine's plain matrix product: 2048 cubed, the median of nine.
double MmGflops(at::ScalarType dtype) {
  constexpr int64_t kSize = 2048;
  const at::Tensor a = at::randn({kSize, kSize}).to(dtype), b = at::randn({kSize, kSize}).to(dtype);
  std::vector<double> seconds;
  for (int i = 0; i < 10; ++i) {
    const double start_s = RealClock().MonotonicSeconds();
    at::mm(a, b);
    if (i > 0) seconds.push_back(RealClock().MonotonicSeconds() - start_s);
  }
  std::nth_element(seconds.begin(), seconds.begin() + 4, seconds.end());
  return 2.0 * kSize * kSize * kSize / seconds[4] / 1e9;
}

void AddPlan(const Bench& bench, const StepTime& time, const std::string& name, nlohmann::json& line) {
  line["flops_" + name] = bench.report().flops();
  line["tokens_" + name] = bench.report().tokens_computed();
  line["waves_" + name] = bench.report().num_waves();
  line["planned_bytes_" + name] = bench.report().peak_bytes();
  line["peak_bytes_" + name] = time.sums.peak_bytes();
}

void RunPairs(Bench& bench, const std::string& text, int pairs) {
  const Shape shape = ParseShape(text);
  nlohmann::json line = {{"shape", text}};
  bench.Run(shape, v1::REUSE);  // warm: pages, kernels
  for (int i = 0; i < pairs; ++i) {
    const StepTime dense = bench.Run(shape, v1::DENSE);
    line["dense_s"].push_back(dense.seconds);
    if (i == 0) AddPlan(bench, dense, "dense", line);
    OpTimes::seconds().clear();
    const StepTime reuse = bench.Run(shape, v1::REUSE);
    line["reuse_s"].push_back(reuse.seconds);
    if (i == 0) AddPlan(bench, reuse, "reuse", line);
    if (i == 0) {
      for (const auto& [name, seconds] : OpTimes::seconds()) line["ops"][name] = seconds;
      line["time/prefix_forward_s"] = reuse.sums.prefix_forward_s();
      line["time/suffix_s"] = reuse.sums.suffix_s();
      line["time/prefix_backward_s"] = reuse.sums.prefix_backward_s();
    }
  }
  std::cout << line.dump() << std::endl;
}

void Serve(Bench& bench, at::ScalarType dtype) {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string what, shape;
    in >> what >> shape;
    std::cout.precision(9);
    if (what == "mm") {
      std::cout << MmGflops(dtype) << std::endl;
    } else {
      std::cout << bench.Run(ParseShape(shape), what == "dense" ? v1::DENSE : v1::REUSE).seconds << std::endl;
    }
  }
}

int Main(int argc, char** argv) {
  InProcessOptions options;
  std::string model, shapes, dtype = "fp32";
  int pairs = 5;
  uint32_t threads = 2, wave_suffixes = 0, head_chunk = 512;
  uint64_t budget = uint64_t{8} << 30;
  bool serve = false;
  CLI::App app("forward and backward of one prompt group, reuse against dense");
  app.add_option("--model", model)->required();
  app.add_option("--shapes", shapes);
  app.add_option("--pairs", pairs);
  app.add_option("--threads", threads);
  app.add_option("--dtype", dtype);
  app.add_option("--wave-suffixes", wave_suffixes);
  app.add_option("--head-chunk", head_chunk);
  app.add_option("--budget", budget);
  app.add_flag("--serve", serve);
  CLI11_PARSE(app, argc, argv);

  options.run.set_model(model);
  options.run.set_dtype(dtype);
  options.run.set_threads(threads);
  options.run.set_wave_suffixes(wave_suffixes);
  options.run.set_head_chunk_tokens(head_chunk);
  options.run.set_memory_budget_bytes(budget);
  options.run.set_schedule(v1::AUTO);
  auto engine = InProcess::Create(options, MakeCpuBackend());
  CHECK(engine.ok()) << engine.status();
  Bench bench(std::move(engine).value());
  const at::ScalarType scalar = dtype == "fp64" ? at::kDouble : dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  if (serve) {
    Serve(bench, scalar);
    return 0;
  }
  OpTimes::Install();
  std::cout << nlohmann::json({{"mm_gflops", MmGflops(scalar)}, {"threads", threads}, {"dtype", dtype}}).dump()
            << std::endl;
  std::istringstream list(shapes);
  for (std::string shape; std::getline(list, shape, ',');) RunPairs(bench, shape, pairs);
  return 0;
}

}  // namespace
}  // namespace stemma::testing

int main(int argc, char** argv) { return stemma::testing::Main(argc, argv); }
