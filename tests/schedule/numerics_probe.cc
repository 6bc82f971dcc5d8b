// The engine in process, driven by JSON lines on stdin: one case a line, one answer a line. tests/oracle/probe.py is
// its other side and tells the fields.
//
// Without `apply` a case is one Prepare, and `out` holds every gradient before clipping ("grad.<hf name>"), log-probs
// and entropies; with `apply` all steps of the request are made, and `out` holds the weights ("weight.<hf name>").
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "common/base/file_writer.h"
#include "common/base/mesh.h"
#include "common/base/status_macros.h"
#include "common/model/safetensors.h"
#include "common/trace/trace_json.h"
#include "nlohmann/json.hpp"
#include "server/protocol/step_messages.h"
#include "tests/testing/backends.h"
#include "tests/testing/control_kernels.h"
#include "tests/testing/control_ranks.h"
#include "tests/testing/control_tensor_parallel.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/step_sums.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/parallel/local_communicator.h"

namespace stemma::testing {
namespace {

using nlohmann::json;

struct NamedValues {
  std::string name;
  std::vector<int64_t> shape;
  std::string bytes;  // float64
};

NamedValues FromTensor(const std::string& name, const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kCPU).to(at::kDouble).contiguous();
  return {name, wide.sizes().vec(), {static_cast<const char*>(wide.const_data_ptr()), wide.nbytes()}};
}

NamedValues FromResult(const std::string& name, const std::string& bytes, bool float64) {
  std::string wide;
  const size_t count = bytes.size() / (float64 ? sizeof(double) : sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    const double value = float64 ? reinterpret_cast<const double*>(bytes.data())[i]
                                 : static_cast<double>(reinterpret_cast<const float*>(bytes.data())[i]);
    wide.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return {name, {static_cast<int64_t>(count)}, wide};
}

absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedValues>& values) {
  std::vector<safetensors::TensorEntry> entries;
  for (const NamedValues& value : values) {
    safetensors::TensorEntry entry;
    entry.name = value.name;
    entry.dtype = safetensors::Dtype::kF64;
    entry.shape = value.shape;
    entries.push_back(entry);
  }
  const std::string header = safetensors::MakeHeader(entries, {});
  ASSIGN_OR_RETURN(FileWriter writer, FileWriter::Create(path));
  RETURN_IF_ERROR(writer.Write(header.data(), header.size()));
  for (const NamedValues& value : values) RETURN_IF_ERROR(writer.Write(value.bytes.data(), value.bytes.size()));
  return writer.Close();
}

// Tells whether the cases run on a device that is not the host.
bool OnFakeDevice() {
  const char* name = std::getenv("STEMMA_TEST_BACKEND");
  return name != nullptr && std::string(name) == "fake";
}

// Reads forced policies, blocks and offload; absent: the planner's.
absl::Status ReadMemory(const json& c, v1::RunConfig& run) {
  v1::TapePolicy prefix = v1::TAPE_POLICY_UNSPECIFIED, suffix = v1::TAPE_POLICY_UNSPECIFIED;
  if (!v1::TapePolicy_Parse(c.value("prefix_policy", "TAPE_POLICY_UNSPECIFIED"), &prefix) ||
      !v1::TapePolicy_Parse(c.value("suffix_policy", "TAPE_POLICY_UNSPECIFIED"), &suffix)) {
    return absl::InvalidArgumentError("prefix_policy or suffix_policy");
  }
  run.set_prefix_policy(prefix);
  run.set_suffix_policy(suffix);
  run.set_prefix_block_rows(c.value("prefix_block_rows", 0u));
  if (c.value("offload", false) && !OnFakeDevice()) run.set_offload(v1::OFFLOAD_ON);
  run.set_host_memory_bytes(uint64_t{64} << 20);
  return absl::OkStatus();
}

// Changes of config or control need another engine; cases that share one are many.
struct Session {
  std::string key;
  std::unique_ptr<InProcess> engine;
};

// Sets ranks with known mistakes: `rank_control` of a communicator of the dp axis, `cp_control` of cp, `pp_control` of
// pp, `tp_control` of tp.
absl::Status SetControls(const json& c, InProcessOptions& options) {
  const std::string rank_control = c.value("rank_control", "none"), tp_control = c.value("tp_control", "none");
  const std::string cp_control = c.value("cp_control", "none"), pp_control = c.value("pp_control", "none");
  const auto knows = [](const std::string& name) {
    return MakeControlRank(name, std::make_unique<LocalCommunicator>("dp")) != nullptr;
  };
  const auto edit = [](const std::string& name) {
    return [name](std::unique_ptr<Communicator> right) { return MakeControlRank(name, std::move(right)); };
  };
  if (rank_control != "none" && !knows(rank_control)) {
    return absl::InvalidArgumentError("rank_control: unknown name " + rank_control);
  }
  if (rank_control != "none") options.edit_communicator = edit(rank_control);
  if (cp_control != "none" && !knows(cp_control)) {
    return absl::InvalidArgumentError("cp_control: unknown name " + cp_control);
  }
  if (cp_control != "none") options.edit_cp_communicator = edit(cp_control);
  if (pp_control != "none" && !knows(pp_control)) {
    return absl::InvalidArgumentError("pp_control: unknown name " + pp_control);
  }
  if (pp_control != "none") options.edit_pp_communicator = edit(pp_control);
  if (tp_control == "none") return absl::OkStatus();
  LocalCommunicator alone("tp");
  if (tp_control == "vocabulary_off_by_one") {
    options.vocabulary_shift = 1;
  } else if (knows(tp_control)) {
    options.edit_tp_communicator = edit(tp_control);
  } else if (MakeControlTensorParallel(tp_control, alone) != nullptr) {
    options.make_tensor_parallel = [tp_control](Communicator& tp) { return MakeControlTensorParallel(tp_control, tp); };
  } else {
    return absl::InvalidArgumentError("tp_control: unknown name " + tp_control);
  }
  return absl::OkStatus();
}

std::string ControlsOf(const json& c) {
  std::string names;
  for (const char* axis : {"rank_control", "cp_control", "pp_control", "tp_control"})
    names += c.value(axis, "none") + " ";
  return names;
}

absl::StatusOr<InProcess*> EngineFor(const json& c, Session& session) {
  InProcessOptions options;
  options.run.set_model(c.at("model").get<std::string>());
  options.run.set_dtype(c.at("dtype").get<std::string>());
  options.run.set_head_chunk_tokens(c.at("head_chunk_tokens").get<uint32_t>());
  options.run.set_wave_suffixes(c.at("wave_suffixes").get<uint32_t>());
  options.run.set_memory_budget_bytes(c.value("memory_budget_bytes", uint64_t{1} << 32));
  v1::Schedule schedule;
  v1::WaveLayout layout;
  if (!v1::Schedule_Parse(c.at("schedule").get<std::string>(), &schedule) ||
      !v1::WaveLayout_Parse(c.at("layout").get<std::string>(), &layout)) {
    return absl::InvalidArgumentError("schedule or layout");
  }
  options.run.set_schedule(schedule);
  options.run.set_layout(layout);
  RETURN_IF_ERROR(ReadMemory(c, options.run));
  options.run.set_threads(c.value("threads", 1));
  options.cluster_per_group = c.value("clusters", "one") == "per_group";
  const char* mesh = std::getenv("STEMMA_TEST_MESH");
  ASSIGN_OR_RETURN(*options.run.mutable_mesh(), ParseMesh(c.value("mesh", mesh == nullptr ? "dp=1" : mesh)));
  options.run.set_shard_parameters(c.value("shard", false) ? v1::SHARD_PARAMETERS_ON : v1::SHARD_PARAMETERS_OFF);
  v1::ReduceGradients reduction;
  if (!v1::ReduceGradients_Parse("REDUCE_GRADIENTS_" + c.value("reduce", "AUTO"), &reduction)) {
    return absl::InvalidArgumentError("reduce");
  }
  options.run.set_reduce_gradients(reduction);
  options.placement_seed = c.value("placement_seed", 0u);
  options.split = {.seed = c.value("split_seed", 0u),
                   .ranks = c.value("split_ranks", 0u),
                   .policies = c.value("split_policies", false)};
  options.context = {.seed = c.value("context_seed", 0u), .cuts_all = c.value("context_cut", false)};
  options.stage_seed = c.value("stage_seed", 0u);
  RETURN_IF_ERROR(SetControls(c, options));
  const std::string control = c.at("control").get<std::string>();
  const std::string key = options.run.SerializeAsString() + control + (options.cluster_per_group ? "1" : "0") +
                          std::to_string(options.placement_seed) + ControlsOf(c) + " " +
                          std::to_string(options.stage_seed) + " " + std::to_string(options.context.seed) +
                          (options.context.cuts_all ? "c " : " ") + std::to_string(options.split.seed) + " " +
                          std::to_string(options.split.ranks) + (options.split.policies ? "p" : "");
  if (!c.at("apply").get<bool>() && session.key == key) return session.engine.get();
  session.engine.reset();
  auto kernel = MakeControlKernel(control, c.value("rope_theta", 10000.0));
  if (kernel == nullptr) return absl::InvalidArgumentError("control: unknown name " + control);
  Backend backend = OnFakeDevice()      ? MakeFakeDeviceBackend()
                    : control == "none" ? MakeTestBackend()
                                        : MakeCpuBackend(std::move(kernel));
  ASSIGN_OR_RETURN(session.engine, InProcess::Create(options, std::move(backend)));
  session.key = c.at("apply").get<bool>() ? "" : key;
  return session.engine.get();
}

json Answer(const InProcess& engine, const internal::v1::Vote& vote, const v1::UpdateHeader& header, int k) {
  json answer = {{"ok", vote.yes()},
                 {"code", vote.yes() ? "" : internal::v1::NoVoteReason_Name(vote.no_reason())},
                 {"message", vote.message()}};
  const internal::v1::StepSums& sums = vote.sums();
  answer["loss"] = sums.policy_loss() + header.loss().kl_loss_coef() * sums.kl_loss() -
                   header.loss().entropy_coeff() * sums.entropy_loss();
  answer["grad_norm"] = std::sqrt(vote.grad_norm_squared());
  for (const auto& [name, value] : SumsByName(sums)) answer["sums"][name] = value;
  for (const internal::v1::LayerExpertLoad& load : vote.expert_load()) {
    answer["expert_load"].push_back(
        {{"layer", load.layer()}, {"logical", load.logical_rows()}, {"computed", load.computed_rows()}});
  }
  answer["peak_bytes"] = sums.peak_bytes();
  answer["ranks"] = engine.votes().size();
  int split_groups = 0, cut_rollouts = 0;
  for (const v1::Cluster& cluster : engine.plan().plan.steps(k % engine.plan().plan.steps_size()).clusters()) {
    if (cluster.helper_ranks_size() > 0) ++split_groups;
    for (const v1::Wave& wave : cluster.waves()) cut_rollouts += wave.cut_rows() ? 1 : 0;
  }
  answer["split_groups"] = split_groups;
  answer["cut_rollouts"] = cut_rollouts;
  const v1::PlanReport& report = engine.plan().report;
  answer["planned_bytes"] = StepReportOf(engine.plan(), static_cast<uint32_t>(k)).peak_bytes();
  answer["plan"] = {{"waves", report.num_waves()},
                    {"clusters", report.num_clusters()},
                    {"groups_reuse", report.groups_reuse()},
                    {"groups_dense", report.groups_dense()},
                    {"rollouts_run", report.rollouts_run()},
                    {"flops", report.flops()},
                    {"flops_dense", report.flops_dense()},
                    {"tokens_computed", report.tokens_computed()},
                    {"tokens_logical", report.tokens_logical()}};
  return answer;
}

absl::StatusOr<json> RunCase(const json& c, Session& session) {
  ASSIGN_OR_RETURN(InProcess * engine, EngineFor(c, session));
  ASSIGN_OR_RETURN(TraceRequest trace, ParseTraceRequest(c.at("request").dump()));
  TrainingRequest request;
  request.update = trace.header;
  request.groups = std::move(trace.groups);
  RETURN_IF_ERROR(engine->Load(std::move(request)));

  const bool apply = c.at("apply").get<bool>();
  const bool float64 = c.at("dtype") == "fp64";
  const int first = apply ? 0 : c.at("step").get<int>();
  const int last = apply ? static_cast<int>(engine->plan().num_steps()) - 1 : first;
  json answer;
  json steps = json::array();
  for (int k = first; k <= last; ++k) {
    ASSIGN_OR_RETURN(const internal::v1::Vote vote, engine->Prepare(k));
    answer = Answer(*engine, vote, trace.header, k);
    steps.push_back({{"loss", answer["loss"]}, {"grad_norm", answer["grad_norm"]}});
    if (!vote.yes()) return answer;
    if (apply) RETURN_IF_ERROR(engine->Apply(k, vote));
  }
  answer["steps"] = steps;

  std::vector<NamedValues> out;
  for (const TensorSpec& tensor : ModelTensors(engine->model())) {
    ASSIGN_OR_RETURN(const at::Tensor values, apply ? engine->HfMaster(tensor) : engine->HfGradient(tensor));
    out.push_back(FromTensor((apply ? "weight." : "grad.") + tensor.name, values));
  }
  for (const auto& [id, result] : engine->results()) {
    out.push_back(FromResult("log_prob." + id, result.log_probs(), float64));
    if (!result.entropy().empty()) out.push_back(FromResult("entropy." + id, result.entropy(), float64));
  }
  RETURN_IF_ERROR(WriteSafetensors(c.at("out").get<std::string>(), out));
  return answer;
}

int Main() {
  Session session;
  for (std::string line; std::getline(std::cin, line);) {
    const json c = json::parse(line);
    const absl::StatusOr<json> answer = RunCase(c, session);
    if (answer.ok()) {
      std::cout << answer->dump() << std::endl;
    } else {
      std::cout << json({{"ok", false},
                         {"code", absl::StatusCodeToString(answer.status().code())},
                         {"message", std::string(answer.status().message())}})
                       .dump()
                << std::endl;
    }
  }
  return 0;
}

}  // namespace
}  // namespace stemma::testing

int main() { return stemma::testing::Main(); }
