// Seconds of Phases A, B and C of one prompt group as it is told to be computed: schedule, tape policies, offload,
// blocks, suffixes per wave. tests/bench/record_phases.py is the other side, the cost model's tests read what it
// writes.
//
//   phase_bench --model DIR [--threads 2] [--rounds 5] [--minutes 8] < samples > recorded
//     samples: a JSON line each: {"shape": "1024/256/2", "schedule": "reuse", "prefix_policy": "S1",
//     "suffix_policy": "S0", "block_rows": 0, "offload": false, "wave_suffixes": 1}
//     recorded: the same lines with waves, how many runs there were, and by phase the least seconds of them
//
// A shape is prompt tokens / response tokens / rollouts; wave_suffixes 0 leaves the waves to the planner. Samples are
// taken in turns, so many rounds or until the minutes are over: others on the machine slow it for seconds and minutes.
#include <glog/logging.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/step_sums.h"
#include "tests/testing/synthetic.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::testing {
namespace {

constexpr const char* kPhases[] = {"prefix_forward", "suffix", "prefix_backward"};
constexpr uint64_t kHostBytes = uint64_t{4} << 30;
constexpr uint64_t kBudgetBytes = uint64_t{64} << 30;  // nothing that is told is refused

struct Sample {
  nlohmann::json line;  // as read, then as recorded
  int64_t prompt = 0, response = 0, rollouts = 0;
  bool dense = false;
  v1::TapePolicy prefix_policy = v1::S0, suffix_policy = v1::S0;
  uint32_t block_rows = 0;
  bool offload = false;
  int wave_suffixes = 0;
  int runs = 0;
};

v1::TapePolicy PolicyOf(const nlohmann::json& line, const char* name) {
  v1::TapePolicy policy;
  CHECK(v1::TapePolicy_Parse(line.at(name).get<std::string>(), &policy)) << line;
  return policy;
}

Sample ParseSample(const std::string& text) {
  Sample sample;
  sample.line = nlohmann::json::parse(text);
  char slash;
  std::istringstream in(sample.line.at("shape").get<std::string>());
  in >> sample.prompt >> slash >> sample.response >> slash >> sample.rollouts;
  CHECK(in) << "a shape is prompt/response/rollouts, not " << text;
  sample.dense = sample.line.at("schedule") == "dense";
  sample.prefix_policy = PolicyOf(sample.line, "prefix_policy");
  sample.suffix_policy = PolicyOf(sample.line, "suffix_policy");
  sample.block_rows = sample.line.at("block_rows");
  sample.offload = sample.line.at("offload");
  sample.wave_suffixes = sample.line.at("wave_suffixes");
  return sample;
}

// The cluster's members in waves of `size`, in order.
void CutWaves(int size, v1::Cluster& cluster) {
  std::vector<v1::Wave> waves;
  int members = 0;
  for (const v1::Wave& wave : cluster.waves()) {
    for (const v1::WaveMember& member : wave.members()) {
      if (members++ % size == 0) waves.emplace_back().set_layout(wave.layout());
      *waves.back().add_members() = member;
    }
  }
  cluster.mutable_waves()->Assign(waves.begin(), waves.end());
}

class Recorder {
 public:
  Recorder(const std::string& model, uint32_t threads) {
    InProcessOptions options;
    options.run.set_model(model);
    options.run.set_dtype("fp32");
    options.run.set_threads(threads);
    options.run.set_head_chunk_tokens(512);
    options.run.set_memory_budget_bytes(kBudgetBytes);
    options.run.set_host_memory_bytes(kHostBytes);
    options.edit_step = [this](v1::StepPlan& step) { Force(step); };
    auto engine = InProcess::Create(options, MakeCpuBackend());
    CHECK(engine.ok()) << engine.status();
    engine_ = std::move(engine).value();
  }

  void Record(Sample& sample) {
    current_ = &sample;
    TrainingRequest request =
        SyntheticRequest({sample.prompt}, std::vector<int64_t>(static_cast<size_t>(sample.rollouts), sample.response),
                         engine_->weights().config.vocab_size);
    request.update.mutable_request()->set_schedule(sample.dense ? v1::DENSE : v1::REUSE);
    const absl::Status loaded = engine_->Load(std::move(request));
    CHECK(loaded.ok()) << loaded;
    const auto vote = engine_->Prepare(0);
    CHECK(vote.ok() && vote->yes()) << vote.status() << vote->message();
    for (const char* phase : kPhases) {
      const double seconds = SumsByName(vote->sums()).at(std::string(phase) + "_s");
      nlohmann::json& least = sample.line[phase];
      least = least.is_null() ? seconds : std::min(seconds, least.get<double>());
    }
    sample.line["runs"] = ++sample.runs;
  }

 private:
  void Force(v1::StepPlan& step) {
    int waves = 0;
    for (v1::Cluster& cluster : *step.mutable_clusters()) {
      cluster.set_prefix_policy(current_->prefix_policy);
      cluster.set_suffix_policy(current_->suffix_policy);
      cluster.set_prefix_block_rows(current_->block_rows);
      cluster.set_offload_prefix(current_->offload);
      cluster.set_offload_headroom_bytes(0);
      if (current_->wave_suffixes > 0) CutWaves(current_->wave_suffixes, cluster);
      waves += cluster.waves_size();
    }
    current_->line["waves"] = waves;
  }

  std::unique_ptr<InProcess> engine_;
  Sample* current_ = nullptr;
};

void RecordAll(Recorder& recorder, int rounds, double until_s, std::vector<Sample>& samples) {
  for (int round = 0; round < rounds; ++round) {
    for (Sample& sample : samples) {
      if (sample.runs > 0 && RealClock().MonotonicSeconds() > until_s) return;
      recorder.Record(sample);
    }
  }
}

int Main(int argc, char** argv) {
  std::string model;
  uint32_t threads = 2;
  int rounds = 5;
  double minutes = 8;
  CLI::App app("phase seconds of samples that are told how to run");
  app.add_option("--model", model)->required();
  app.add_option("--threads", threads);
  app.add_option("--rounds", rounds);
  app.add_option("--minutes", minutes);
  CLI11_PARSE(app, argc, argv);
  std::vector<Sample> samples;
  for (std::string line; std::getline(std::cin, line);) samples.push_back(ParseSample(line));
  Recorder recorder(model, threads);
  RecordAll(recorder, rounds, RealClock().MonotonicSeconds() + 60 * minutes, samples);
  for (const Sample& sample : samples) std::cout << sample.line.dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace stemma::testing

int main(int argc, char** argv) { return stemma::testing::Main(argc, argv); }
