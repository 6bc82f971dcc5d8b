#include "client/cli/output/request_records.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/output/command_status.h"
#include "client/cli/output/plan_text.h"
#include "common/base/error.h"
#include "common/base/human.h"
#include "common/base/mesh.h"
#include "common/cost/plan_seconds.h"
#include "google/protobuf/util/json_util.h"

namespace stemma::cli {
namespace {

Record Metric(const v1::StepResult& step, const std::string& name) {
  const auto found = step.metrics().find(name);
  return found == step.metrics().end() ? Record() : Record(found->second);
}

Record CountMetric(const v1::StepResult& step, const std::string& name) {
  const Record value = Metric(step, name);
  return value.is_null() ? value : Record(static_cast<uint64_t>(value.get<double>()));
}

// Proto JSON writes 64-bit integers as strings; counts read better as numbers.
void UnquoteIntegers(Record& value, const google::protobuf::Message& message);

void UnquoteField(Record& value, const google::protobuf::Message& message,
                  const google::protobuf::FieldDescriptor* field) {
  using google::protobuf::FieldDescriptor;
  const auto* reflection = message.GetReflection();
  const bool is_wide =
      field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64 || field->cpp_type() == FieldDescriptor::CPPTYPE_INT64;
  if (is_wide && value.is_string()) {
    value = Record::parse(value.get<std::string>());
  } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_map()) {
    if (!field->is_repeated()) {
      if (reflection->HasField(message, field)) UnquoteIntegers(value, reflection->GetMessage(message, field));
      return;
    }
    for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
      UnquoteIntegers(value[i], reflection->GetRepeatedMessage(message, field, i));
    }
  }
}

void UnquoteIntegers(Record& value, const google::protobuf::Message& message) {
  const auto* descriptor = message.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto found = value.find(descriptor->field(i)->name());
    if (found != value.end()) UnquoteField(*found, message, descriptor->field(i));
  }
}

}  // namespace

Record RequestRecord(const v1::RequestStatus& status) {
  Record record;
  record["request_id"] = status.request_id();
  record["state"] = v1::RequestState_Name(status.state());
  record["steps_applied"] = status.steps_applied();
  record["steps_total"] = status.steps_total();
  record["replayed"] = status.replayed();
  record["queue_position"] = status.queue_position();
  record["lineage"] = status.lineage();
  if (status.has_failure()) {
    record["reason"] = status.failure().reason();
    record["message"] = status.failure().message();
  }
  return record;
}

std::vector<Column> RequestColumns() {
  return {{"request_id", "request", 8, true}, {"state", "state", 9, true},   {"steps_applied", "applied"},
          {"steps_total", "steps"},           {"queue_position", "queue"},   {"replayed", "replayed"},
          {"lineage", "lineage", 7, true},    {"reason", "reason", 6, true}, {"message", "message", 7, true}};
}

Record StepRecord(const v1::StepResult& step) {
  Record record;
  record["step"] = step.step();
  record["outcome"] = v1::StepResult::Outcome_Name(step.outcome());
  record["loss"] = Metric(step, "actor/loss");
  record["grad_norm"] = Metric(step, "actor/grad_norm");
  record["tokens_logical"] = CountMetric(step, "prefix/tokens_logical");
  record["tokens_computed"] = CountMetric(step, "prefix/tokens_computed");
  record["tokens_saved"] = CountMetric(step, "prefix/tokens_saved");
  record["seconds"] = Metric(step, "perf/actor/time_per_step");
  return record;
}

std::vector<Column> StepColumns() {
  return {{"line", "line", 5},
          {"step", "step", 5},
          {"loss", "loss", 12},
          {"grad_norm", "grad_norm", 11},
          {"tokens_logical", "logical", 9},
          {"tokens_computed", "computed", 9},
          {"tokens_saved", "saved", 9},
          {"seconds", "seconds", 9},
          {"outcome", "outcome", 7, true}};
}

std::vector<Column> Only(const std::vector<Column>& columns, const std::vector<std::string>& keys) {
  std::vector<Column> chosen;
  for (const std::string& key : keys) {
    const auto found = std::find_if(columns.begin(), columns.end(), [&](const Column& c) { return c.key == key; });
    if (found != columns.end()) chosen.push_back(*found);
  }
  return chosen;
}

namespace {

Record SecondsRecord(const v1::PhaseSeconds& seconds) {
  return {{"prefix_forward", seconds.prefix_forward()},
          {"suffix", seconds.suffix()},
          {"prefix_backward", seconds.prefix_backward()},
          {"apply", seconds.apply()}};
}

Record BytesRecord(const v1::PhaseBytes& bytes) {
  return {{"hot_set", bytes.hot_set()},
          {"dormant_set", bytes.dormant_set()},
          {"wave_tape", bytes.wave_tape()},
          {"working_set", bytes.working_set()},
          {"peak", bytes.peak()},
          {"peak_with_headroom", bytes.peak_with_headroom()},
          {"host", bytes.host()}};
}

// Seconds for a unit of each kind of work.
Record RatesRecord(const v1::Rates& rates) {
  Record record;
  record["from"] = rates.calibrated() ? absl::StrCat("measured, ", rates.samples(), " steps")
                                      : absl::StrCat("defaults, ", rates.samples(), " steps measured");
  const auto* descriptor = rates.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE) continue;
    record[field->name()] = rates.GetReflection()->GetDouble(rates, field);
  }
  return record;
}

std::string PolicyName(v1::TapePolicy policy) {
  return policy == v1::TAPE_POLICY_UNSPECIFIED ? "-" : v1::TapePolicy_Name(policy);
}

std::string PeakText(const v1::PhaseBytes& bytes) { return HumanBytes(static_cast<double>(bytes.peak())); }

void AddMemory(const v1::ClusterReport& cluster, Record& record) {
  record["prefix_policy"] = PolicyName(cluster.prefix_policy());
  record["suffix_policy"] = PolicyName(cluster.suffix_policy());
  record["prefix_block_rows"] = cluster.prefix_block_rows();
  record["offload_prefix"] = cluster.offload_prefix();
  record["memory_reason"] = cluster.memory_reason();
  record["bytes"] = {{"prefix_forward", BytesRecord(cluster.prefix_forward())},
                     {"suffix", BytesRecord(cluster.suffix())},
                     {"prefix_backward", BytesRecord(cluster.prefix_backward())}};
  record["seconds"] = SecondsRecord(cluster.seconds());
  record["prefix"] = PrefixWay(cluster);
  record["bytes_abc"] = absl::StrJoin(
      {PeakText(cluster.prefix_forward()), PeakText(cluster.suffix()), PeakText(cluster.prefix_backward())}, ", ");
  const v1::PhaseSeconds& s = cluster.seconds();
  record["seconds_abc"] = absl::StrJoin(
      {HumanSeconds(s.prefix_forward()), HumanSeconds(s.suffix()), HumanSeconds(s.prefix_backward())}, ", ");
}

}  // namespace

Record PlanRecord(const v1::PlanReport& plan) {
  Record record;
  record["steps"] = plan.num_steps();
  record["groups"] = plan.num_groups();
  record["groups_reuse"] = plan.groups_reuse();
  record["groups_dense"] = plan.groups_dense();
  record["rollouts"] = plan.num_rollouts();
  record["rollouts_run"] = plan.rollouts_run();
  record["clusters"] = plan.num_clusters();
  record["waves"] = plan.num_waves();
  record["tokens_logical"] = plan.tokens_logical();
  record["tokens_computed"] = plan.tokens_computed();
  record["flops"] = plan.flops();
  record["flops_dense"] = plan.flops_dense();
  record["flops_ratio"] = plan.flops() > 0 ? Record(plan.flops_dense() / plan.flops()) : Record();
  record["log_prob_passes"] = plan.log_prob_passes();
  record["checkpoint_weights_bytes"] = plan.checkpoint_weights_bytes();
  record["peak_bytes"] = plan.peak_bytes();
  record["peak_bytes_with_headroom"] = plan.peak_bytes_with_headroom();
  record["budget_bytes"] = plan.budget_bytes();
  record["state_bytes"] = {{"weights", plan.state().weights()},     {"gradients", plan.state().gradients()},
                           {"optimizer", plan.state().optimizer()}, {"tables", plan.state().tables()},
                           {"exchange", plan.state().exchange()},   {"device", plan.state().device()},
                           {"host", plan.state().host()},           {"apply", plan.state().apply()}};
  record["seconds"] = SecondsRecord(plan.seconds());
  record["pipeline_s"] = plan.pipeline_s();
  record["parameters_s"] = plan.parameters_s();
  record["plan_s"] = PlanSeconds(plan);
  record["rates"] = RatesRecord(plan.rates());
  return record;
}

std::vector<Record> ClusterRecords(const v1::PlanReport& plan) {
  std::vector<Record> records;
  for (int k = 0; k < plan.steps_size(); ++k) {
    for (int c = 0; c < plan.steps(k).clusters_size(); ++c) {
      const v1::ClusterReport& cluster = plan.steps(k).clusters(c);
      Record record;
      record["k"] = k;
      record["cluster"] = c;
      record["reuse_uids"] = std::vector<std::string>(cluster.reuse_uids().begin(), cluster.reuse_uids().end());
      record["dense_uids"] = std::vector<std::string>(cluster.dense_uids().begin(), cluster.dense_uids().end());
      record["wave_sizes"] = std::vector<uint32_t>(cluster.wave_sizes().begin(), cluster.wave_sizes().end());
      record["waves"] = absl::StrJoin(cluster.wave_sizes(), "+");
      record["reason"] = cluster.reason();
      AddMemory(cluster, record);
      records.push_back(std::move(record));
    }
  }
  return records;
}

std::vector<Column> ClusterColumns() {
  return {{"k", "step"},
          {"cluster", "cluster"},
          {"reuse_uids", "reuse"},
          {"dense_uids", "dense"},
          {"waves", "waves", 5, true},
          {"prefix", "prefix", 6, true},
          {"suffix_policy", "suffixes", 8, true},
          {"bytes_abc", "peaks of A, B, C", 11, true},
          {"seconds_abc", "times of A, B, C", 13, true},
          {"reason", "reason", 6, true},
          {"memory_reason", "memory", 6, true}};
}

std::vector<Record> RankReportRecords(const v1::PlanReport& plan) {
  std::vector<Record> records;
  for (int k = 0; k < plan.steps_size(); ++k) {
    const v1::StepReport& step = plan.steps(k);
    for (int rank = 0; rank < step.ranks_size(); ++rank) {
      const v1::RankReport& report = step.ranks(rank);
      Record record;
      record["k"] = k;
      record["rank"] = rank;
      record["groups"] = report.groups();
      record["tokens_computed"] = report.tokens_computed();
      record["peak_bytes"] = report.peak_bytes();
      record["parts"] = report.parts();
      record["seconds"] = SecondsRecord(report.seconds());
      record["exchange_s"] = report.exchange_s();
      record["imbalance"] = step.imbalance();
      record["imbalance_whole"] = step.imbalance_whole();
      record["over_bound"] = step.over_bound();
      records.push_back(std::move(record));
    }
  }
  return records;
}

std::vector<Record> SplitRecords(const v1::PlanReport& plan) {
  std::vector<Record> records;
  for (int k = 0; k < plan.steps_size(); ++k) {
    for (const v1::SplitGroup& group : plan.steps(k).split_groups()) {
      Record record;
      record["k"] = k;
      record["uid"] = group.uid();
      record["ranks"] = group.ranks();
      record["rollouts"] = group.rollouts();
      record["bytes"] = group.bytes();
      record["seconds"] = group.seconds();
      records.push_back(std::move(record));
    }
  }
  return records;
}

std::vector<Record> GroupRecords(const v1::PlanReport& plan) {
  std::vector<Record> records;
  for (int k = 0; k < plan.steps_size(); ++k) {
    for (const v1::ClusterReport& cluster : plan.steps(k).clusters()) {
      for (const v1::GroupCost& group : cluster.groups()) {
        records.push_back({{"k", k},
                           {"uid", group.uid()},
                           {"rollouts", group.rollouts()},
                           {"way", group.reuse() ? "reuse" : "dense"},
                           {"rho", group.rho()},
                           {"eta", group.eta()},
                           {"epsilon", group.epsilon()},
                           {"speedup", group.speedup()},
                           {"seconds_reuse", group.seconds_reuse()},
                           {"seconds_dense", group.seconds_dense()}});
      }
    }
  }
  return records;
}

std::vector<Column> GroupColumns() {
  return {{"k", "step"},
          {"uid", "group", 5, true},
          {"rollouts", "N"},
          {"way", "way", 3, true},
          {"rho", "rho"},
          {"eta", "eta"},
          {"epsilon", "epsilon"},
          {"speedup", "S(N)"},
          {"seconds_reuse", "seconds reuse"},
          {"seconds_dense", "seconds dense"}};
}

std::vector<Record> RankRecords(const v1::ServerInfo& info) {
  std::vector<Record> records;
  for (const v1::RankInfo& rank : info.ranks()) {
    Record record;
    record["rank"] = rank.rank();
    const bool in_mesh = rank.rank() < NumRanks(info.config().mesh());  // else the server is none of ours
    record["dp"] = in_mesh ? Record(PlaceOf(info.config().mesh(), rank.rank()).dp_rank) : Record();
    record["pp"] = in_mesh ? Record(PlaceOf(info.config().mesh(), rank.rank()).pp_rank) : Record();
    record["cp"] = in_mesh ? Record(PlaceOf(info.config().mesh(), rank.rank()).cp_rank) : Record();
    record["tp"] = in_mesh ? Record(PlaceOf(info.config().mesh(), rank.rank()).tp_rank) : Record();
    record["host"] = rank.host();
    record["device"] = rank.device();
    record["device_name"] = rank.device_name().empty() ? Record() : Record(rank.device_name());
    record["pid"] = rank.pid();
    record["phase"] = rank.phase();
    records.push_back(std::move(record));
  }
  return records;
}

std::vector<Column> RankColumns() {
  return {{"rank", "rank"},
          {"dp", "dp"},
          {"pp", "pp"},
          {"cp", "cp"},
          {"tp", "tp"},
          {"host", "host", 4, true},
          {"device", "device", 6, true},
          {"device_name", "hardware", 8, true},
          {"pid", "pid"},
          {"phase", "phase", 5, true}};
}

std::vector<Record> LinkRecords(const v1::ServerInfo& info) {
  constexpr double kMicrosecondsOfSecond = 1e6, kBytesOfGigabyte = 1e9;
  std::vector<Record> records;
  for (const v1::LinkInfo& link : info.links()) {
    Record record;
    record["axis"] = link.axis();
    record["ranks"] = link.ranks();
    record["gb_per_s"] = link.byte_s() > 0 ? Record(1 / (link.byte_s() * kBytesOfGigabyte)) : Record();
    record["message_us"] = link.message_s() * kMicrosecondsOfSecond;
    records.push_back(std::move(record));
  }
  return records;
}

std::vector<Column> LinkColumns() {
  return {{"axis", "link", 4, true}, {"ranks", "ranks"}, {"gb_per_s", "GB/s"}, {"message_us", "us a message"}};
}

Record MessageRecord(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(message, &json, options).ok()) return Record::object();
  Record record = Record::parse(json);
  UnquoteIntegers(record, message);
  return record;
}

absl::Status OutcomeStatus(const v1::RequestStatus& status) {
  if (status.has_failure()) return WithRpcExitCode(FromFailure(status.failure()));
  if (status.state() != v1::CANCELLED) return absl::OkStatus();
  return WithRpcExitCode(
      MakeError(Reason::kCancelled, absl::StrCat("request ", status.request_id(), " was cancelled after ",
                                                 status.steps_applied(), " of ", status.steps_total(), " steps")));
}

}  // namespace stemma::cli
