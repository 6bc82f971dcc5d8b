#include "tests/bench/memory_runs.h"

#include <cstdio>
#include <utility>

#include "common/clock.h"
#include "common/state_bytes.h"
#include "glog/logging.h"
#include "tests/testing/synthetic.h"

namespace stemma::testing {

Spread::Spread(std::vector<double> values) {
  CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  median = (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
  low = values.front();
  high = values.back();
}

std::string Spread::text(int digits) const {
  char buffer[96];
  std::snprintf(buffer, sizeof(buffer), "%.*f (%.*f–%.*f)", digits, median, digits, low, digits, high);
  return buffer;
}

Spread RatioOf(const std::vector<double>& above, const std::vector<double>& below) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(above.size(), below.size()); ++i) ratios.push_back(above[i] / below[i]);
  return Spread(std::move(ratios));
}

MemoryRuns::MemoryRuns(const std::string& model, uint32_t threads) : threads_(threads) {
  options_.run.set_model(model);
  options_.run.set_dtype("fp32");
  options_.run.set_threads(threads);
  options_.run.set_head_chunk_tokens(kHeadChunkRows);
  options_.run.set_host_memory_bytes(static_cast<uint64_t>(4096 * kMiB));
}

Measured MemoryRuns::Run(const Shape& shape, const Memory& memory) {
  return RunWith(usual_copies_, /*wrong=*/false, shape, memory);
}

Measured MemoryRuns::RunWith(CopyEngine& copies, bool wrong, const Shape& shape, const Memory& memory) {
  InProcess& engine = Forced();
  copies_->Use(copies);
  current_ = memory;
  const absl::Status loaded = engine.Load(Request(shape, memory.dense));
  CHECK(loaded.ok()) << loaded;
  Measured measured;
  Prepare(engine, wrong, measured);
  return measured;
}

Measured MemoryRuns::RunPlanned(const Shape& shape, int64_t budget_bytes, int rounds, v1::ClusterReport* report) {
  InProcessOptions options = options_;
  const StateBytes state = StateBytesOf(Forced().weights().config, options.run.dtype());
  options.run.set_optimizer_residency(v1::DEVICE);
  options.run.set_memory_budget_bytes(static_cast<uint64_t>(state.device(v1::DEVICE) + budget_bytes));
  auto engine = InProcess::Create(options, std::make_unique<CpuAttention>());
  CHECK(engine.ok()) << engine.status();
  Measured measured;
  for (int i = 0; i < rounds; ++i) {
    const absl::Status loaded = (*engine)->Load(Request(shape, false));
    if (!loaded.ok()) return measured;
    Prepare(**engine, /*wrong=*/false, measured);
  }
  *report = (*engine)->plan().report.steps(0).clusters(0);
  return measured;
}

ByteShape MemoryRuns::Bytes() {
  return {.config = Forced().weights().config, .head_chunk_rows = kHeadChunkRows, .threads = threads_};
}

InProcess& MemoryRuns::Forced() {
  if (forced_ != nullptr) return *forced_;
  InProcessOptions options = options_;
  options.run.set_memory_budget_bytes(static_cast<uint64_t>(65536 * kMiB));
  options.run.set_wave_suffixes(1);
  options.edit_step = [this](v1::StepPlan& step) {
    for (v1::Cluster& cluster : *step.mutable_clusters()) {
      cluster.set_prefix_policy(current_.prefix);
      cluster.set_suffix_policy(current_.suffix);
      cluster.set_prefix_block_rows(static_cast<uint32_t>(current_.block_rows));
      cluster.set_offload_prefix(current_.offload);
      cluster.set_offload_headroom_bytes(static_cast<uint64_t>(current_.headroom_bytes));
    }
  };
  options.progress = [this](const worker::v1::Heartbeat& heartbeat) { NotePhase(heartbeat); };
  auto copies = std::make_unique<ChangingCopyEngine>();
  copies_ = copies.get();
  auto engine = InProcess::Create(options, std::make_unique<CpuAttention>(), std::move(copies));
  CHECK(engine.ok()) << engine.status();
  forced_ = std::move(engine).value();
  return *forced_;
}

TrainingRequest MemoryRuns::Request(const Shape& shape, bool dense) {
  const int64_t vocab = Forced().weights().config.vocab_size;
  TrainingRequest request = SyntheticRequest(
      {shape.prompt}, std::vector<int64_t>(static_cast<size_t>(shape.rollouts), shape.response), vocab);
  request.update.mutable_request()->set_schedule(dense ? v1::DENSE : v1::REUSE);
  return request;
}

void MemoryRuns::Prepare(InProcess& engine, bool wrong, Measured& measured) {
  const double start_s = RealClock().MonotonicSeconds();
  const auto vote = engine.Prepare(0);
  measured.seconds.push_back(RealClock().MonotonicSeconds() - start_s);
  CHECK(vote.ok()) << vote.status();
  CHECK(vote->yes() || (wrong && vote->no_reason() == "NONFINITE")) << vote->message();
  double phases_s = 0;
  for (const char* phase : {"time/prefix_forward_s", "time/suffix_s", "time/prefix_backward_s"}) {
    phases_s += vote->sums().at(phase);
  }
  measured.phase_seconds.push_back(phases_s);
  measured.vote = *vote;
  phases_.begin_s = phases_.prefix_forward_s - vote->sums().at("time/prefix_forward_s");
}

void MemoryRuns::NotePhase(const worker::v1::Heartbeat& heartbeat) {
  const double now_s = RealClock().MonotonicSeconds();
  if (heartbeat.phase() == "prefix_forward") phases_.prefix_forward_s = now_s;
  if (heartbeat.phase() == "suffix") phases_.suffix_s = now_s;
  if (heartbeat.phase() == "prefix_backward") phases_.prefix_backward_s = now_s;
}

}  // namespace stemma::testing
