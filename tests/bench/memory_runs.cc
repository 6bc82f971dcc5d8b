#include "tests/bench/memory_runs.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/cost/state_bytes.h"
#include "glog/logging.h"
#include "tests/testing/synthetic.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::testing {

PrefixShape PrefixOf(const Shape& shape, const Memory& memory) {
  if (memory.dense) return {};
  return {.rows = shape.prompt - 1,
          .block_rows = memory.block_rows,
          .policy = memory.prefix,
          .offload = memory.offload,
          .headroom_bytes = memory.headroom_bytes};
}

WaveShape WaveOf(const Shape& shape, const Memory& memory) {
  if (memory.dense) {
    return {.rows = shape.prompt - 1 + shape.response, .kv_only_rows = shape.prompt - 1, .policy = memory.suffix};
  }
  WaveShape wave = {.rows = shape.response, .policy = memory.suffix};
  AddRun({.rows = wave.rows, .longest_rows = wave.rows, .ancestor_rows = shape.prompt - 1}, wave);
  return wave;
}

int64_t PlannedPeak(const ByteShape& bytes, const Shape& shape, const Memory& memory) {
  const PrefixShape prefix = PrefixOf(shape, memory);
  const int64_t peak = SuffixBytes(bytes, prefix, WaveOf(shape, memory)).peak();
  if (memory.dense) return peak;
  return std::max({peak, PrefixForwardBytes(bytes, prefix).peak(), PrefixBackwardBytes(bytes, prefix).peak()});
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
  return Prepare(engine, wrong);
}

std::unique_ptr<InProcess> MemoryRuns::Planned(const Shape& shape, int64_t budget_bytes) {
  InProcessOptions options = options_;
  const StateBytes state = StateBytesOf(Forced().weights().config, RunDtypeOf(options.run.dtype()));
  options.run.set_optimizer_residency(v1::DEVICE);
  options.run.set_memory_budget_bytes(static_cast<uint64_t>(state.device(v1::DEVICE) + budget_bytes));
  auto engine = InProcess::Create(options, MakeCpuBackend());
  CHECK(engine.ok()) << engine.status();
  return (*engine)->Load(Request(shape, /*dense=*/false)).ok() ? std::move(engine).value() : nullptr;
}

Measured MemoryRuns::RunPlanned(InProcess& engine) { return Prepare(engine, /*wrong=*/false); }

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
  options.progress = [this](const internal::v1::Heartbeat& heartbeat) { NotePhase(heartbeat); };
  auto copies = std::make_unique<ChangingCopyEngine>();
  copies_ = copies.get();
  auto engine = InProcess::Create(options, MakeCpuBackend(), std::move(copies));
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

Measured MemoryRuns::Prepare(InProcess& engine, bool wrong) {
  const double start_s = RealClock().MonotonicSeconds();
  const auto vote = engine.Prepare(0);
  Measured measured;
  measured.seconds = RealClock().MonotonicSeconds() - start_s;
  CHECK(vote.ok()) << vote.status();
  CHECK(vote->yes() || (wrong && vote->no_reason() == internal::v1::NONFINITE)) << vote->message();
  measured.vote = *vote;
  const internal::v1::StepSums& sums = measured.sums();
  measured.phase_seconds = sums.prefix_forward_s() + sums.suffix_s() + sums.prefix_backward_s();
  phases_.begin_s = phases_.prefix_forward_s - sums.prefix_forward_s();
  return measured;
}

void MemoryRuns::NotePhase(const internal::v1::Heartbeat& heartbeat) {
  const double now_s = RealClock().MonotonicSeconds();
  if (heartbeat.phase() == "prefix_forward") phases_.prefix_forward_s = now_s;
  if (heartbeat.phase() == "suffix") phases_.suffix_s = now_s;
  if (heartbeat.phase() == "prefix_backward") phases_.prefix_backward_s = now_s;
}

}  // namespace stemma::testing
