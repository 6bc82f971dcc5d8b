#include "server/rpc/metric_families.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/time/time.h"

namespace stemma::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// A value of a family, with its label's value where the family has one.
struct Sample {
  std::string label_value;
  double value;
};

double Number(uint64_t count) { return static_cast<double>(count); }

class Families {
 public:
  void Gauge(const char* name, const char* help, double value) { Gauges(name, help, "", {{"", value}}); }
  void Gauges(const char* name, const char* help, const char* label, const std::vector<Sample>& samples) {
    Add(name, help, MetricType::Gauge, label, samples);
  }
  void Counter(const char* name, const char* help, double value) { Counters(name, help, "", {{"", value}}); }
  void Counters(const char* name, const char* help, const char* label, const std::vector<Sample>& samples) {
    Add(name, help, MetricType::Counter, label, samples);
  }
  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  void Add(const char* name, const char* help, MetricType type, const char* label, const std::vector<Sample>& samples) {
    MetricFamily family{.name = name, .help = help, .type = type, .metric = {}};
    for (const Sample& sample : samples) {
      ClientMetric& metric = family.metric.emplace_back();
      if (*label != '\0') metric.label.push_back({label, sample.label_value});
      (type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) = sample.value;
    }
    families_.push_back(std::move(family));
  }

  std::vector<MetricFamily> families_;
};

// Returns 1 for the state that the model is in and 0 for the others, so that a state can be summed over time.
std::vector<Sample> ModelStates(v1::ModelInfo::State now) {
  std::vector<Sample> samples;
  for (int state = v1::ModelInfo::LOADING; v1::ModelInfo::State_IsValid(state); ++state) {
    const auto each = static_cast<v1::ModelInfo::State>(state);
    samples.push_back({absl::AsciiStrToLower(v1::ModelInfo::State_Name(each)), each == now ? 1.0 : 0.0});
  }
  return samples;
}

void AddModel(const ServerNumbers& numbers, Families& families) {
  families.Gauges("stemma_model_state", "1 for the state that the model is in.", "state",
                  ModelStates(numbers.model.state()));
  families.Gauge("stemma_model_step", "Optimizer steps of the lineage.", Number(numbers.model.step()));
  families.Gauge("stemma_steps_behind", "Steps to compute again before the weights are the lineage's.",
                 Number(numbers.steps_behind));
  families.Gauge("stemma_workers", "Workers that are connected.", Number(numbers.workers));
  families.Gauge("stemma_ranks", "Workers that the mesh needs.", Number(numbers.ranks));
  families.Gauge("stemma_jobs_open", "Jobs that are planned, wait or run, as limits.requests_in_flight counts them.",
                 Number(numbers.jobs_open));
  families.Gauge("stemma_jobs_open_bytes", "Bytes of their groups.", Number(numbers.jobs_open_bytes));
  families.Gauge("stemma_checkpoints", "Checkpoints that are known, damaged ones too.", Number(numbers.checkpoints));
  families.Gauge("stemma_newest_checkpoint_step",
                 "The step of the newest checkpoint that can be loaded; 0 where there is none.",
                 Number(numbers.newest_checkpoint_step));
}

std::vector<Sample> RefusalsOf(const RefusalCounts& counts) {
  std::vector<Sample> samples;
  for (size_t i = 0; i < counts.size(); ++i) {
    samples.push_back({absl::AsciiStrToLower(std::string(RowOf(kRefusalReasons[i]).name)), Number(counts[i])});
  }
  return samples;
}

std::vector<Sample> EndsOf(const CallCounts::Ends& ends) {
  return {{"done", Number(ends.done)}, {"failed", Number(ends.failed)}, {"cancelled", Number(ends.cancelled)}};
}

void AddTotals(const ServerNumbers& numbers, Families& families) {
  const Totals& totals = numbers.totals;
  families.Counter("stemma_generations_total", "Times that a full set of workers began to load the model.",
                   Number(numbers.generations));
  families.Counter("stemma_lineages_lost_total", "Times that weights were lost, or replaced by a checkpoint's.",
                   Number(totals.lineages_lost));
  families.Counter("stemma_checkpoints_saved_total", "Checkpoints that were saved.", Number(totals.checkpoints_saved));
  families.Counter("stemma_checkpoint_saves_failed_total", "Saves of checkpoints that failed.",
                   Number(numbers.checkpoint_saves_failed));
  families.Counter("stemma_updates_accepted_total", "Updates that were accepted.", Number(totals.updates_accepted));
  families.Counters("stemma_updates_ended_total", "Updates that ended.", "state",
                    {{"done", Number(totals.updates_ended[v1::DONE])},
                     {"failed", Number(totals.updates_ended[v1::FAILED])},
                     {"cancelled", Number(totals.updates_ended[v1::CANCELLED])},
                     {"rolled_back", Number(totals.updates_ended[v1::ROLLED_BACK])}});
  families.Counters("stemma_log_prob_passes_total", "Log-prob passes that ended.", "state",
                    EndsOf(numbers.calls.log_prob_passes));
  families.Counters("stemma_verifications_total", "Verifications that ended.", "state",
                    EndsOf(numbers.calls.verifications));
  families.Counters("stemma_exports_total", "Exports that ended.", "state", EndsOf(numbers.calls.exports));
  families.Counters("stemma_requests_refused_total", "Calls that were refused because of the server's machine.",
                    "reason", RefusalsOf(numbers.refused));
  families.Counters("stemma_steps_total", "Steps that ended, each once.", "outcome",
                    {{"applied", Number(totals.steps[v1::StepResult::APPLIED])},
                     {"skipped_nonfinite", Number(totals.steps[v1::StepResult::SKIPPED_NONFINITE])},
                     {"skipped_empty", Number(totals.steps[v1::StepResult::SKIPPED_EMPTY])}});
}

void AddWork(const Totals& totals, Families& families) {
  families.Counters("stemma_phase_seconds_total", "Seconds of the applied steps' phases, of the slowest rank each.",
                    "phase",
                    {{"prefix_forward", totals.prefix_forward_s},
                     {"suffix", totals.suffix_s},
                     {"prefix_backward", totals.prefix_backward_s},
                     {"apply", totals.apply_s}});
  families.Counters("stemma_tokens_total",
                    "Tokens of the applied steps: logical with a prompt for each rollout, computed as run.", "kind",
                    {{"logical", totals.tokens_logical}, {"computed", totals.tokens_computed}});
  families.Counter("stemma_flops_total", "FLOPs of the applied steps' plans.", totals.flops);
  if (totals.last_step.metrics().empty()) return;
  std::vector<Sample> samples;
  for (const auto& [name, value] : totals.last_step.metrics()) samples.push_back({name, value});
  families.Gauges("stemma_last_step", "Metrics of the last step that was applied, by their name in docs/metrics.md.",
                  "metric", samples);
}

void AddCertificates(const CertificateState& certificates, Families& families) {
  families.Gauge("stemma_tls_files_whole", "1 where new connections can be made with the files of TLS.",
                 certificates.whole ? 1 : 0);
  std::vector<Sample> samples;
  for (const auto& [file, ends] : {std::pair("cert", certificates.cert_ends), std::pair("ca", certificates.ca_ends)}) {
    if (ends != absl::InfiniteFuture()) samples.push_back({file, absl::ToDoubleSeconds(ends - absl::UnixEpoch())});
  }
  families.Gauges("stemma_tls_ends_seconds", "When the last whole certificate of a file ends, in seconds since 1970.",
                  "file", samples);
}

}  // namespace

std::vector<MetricFamily> MetricFamiliesOf(const ServerFacts& facts, const std::optional<ServerNumbers>& numbers,
                                           const std::optional<CertificateState>& certificates) {
  Families families;
  families.Gauges("stemma_info", "The server's version.", "version", {{facts.version, 1}});
  families.Gauge("stemma_start_time_seconds", "When the server started, in seconds since 1970.", facts.started_at_s);
  families.Gauge("stemma_answers", "1 where the server decides; 0 where it hangs, as in a write to its disk.",
                 numbers ? 1 : 0);
  if (certificates) AddCertificates(*certificates, families);
  if (numbers) {
    AddModel(*numbers, families);
    AddTotals(*numbers, families);
    AddWork(numbers->totals, families);
  }
  return families.Take();
}

}  // namespace stemma::server
