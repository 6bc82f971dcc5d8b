#include "client/cli/output/simulation_text.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/output/answer_fields.h"
#include "common/base/human.h"

namespace stemma::cli {
namespace {

constexpr const char* kAxes[] = {"tp", "cp", "pp", "dp"};

std::string Percent(double part, double whole) {
  return whole > 0 ? absl::StrFormat("%.1f%%", 100 * part / whole) : "-";
}

// The sum over an object's numbers.
double Sum(const Record& record) {
  double sum = 0;
  for (const auto& [axis, value] : record.items()) sum += value.is_number() ? value.get<double>() : 0;
  return sum;
}

// "tp nvlink4, dp ib-ndr"; empty: the rates have them.
std::string NetworksText(const Record& mesh) {
  const Record networks = mesh.value("networks", Record());
  if (!networks.is_object()) return "";
  std::vector<std::string> words;
  for (const char* const axis : kAxes) {
    if (networks.contains(axis)) words.push_back(absl::StrCat(axis, " ", networks.value(axis, "")));
  }
  return absl::StrJoin(words, ", ");
}

// "parameters of dp=64; dp=32,tp=2"; empty: no mesh shards them.
std::string ShardedText(const Record& answer) {
  std::vector<std::string> meshes;
  for (const Record& mesh : MeshesOf(answer).possible) {
    if (mesh.value("shard_parameters", false)) meshes.push_back(mesh.value("mesh", ""));
  }
  return meshes.empty() ? "" : absl::StrCat("parameters of ", absl::StrJoin(meshes, "; "));
}

Record SimulationAssumptions(const Record& answer) {
  Record record;
  record["model"] = absl::StrCat(answer.value("model", ""), ": ", HumanCount(NumberIn(answer, "parameters")),
                                 " parameters, ", answer.value("dtype", ""));
  record["trace"] = TraceText(answer);
  record["device"] = answer.value("device", "");
  const std::string rates = answer.value("rates", "");
  record["rates"] = absl::StartsWith(rates, "default") ? rates + ": compare, do not promise" : rates;
  record["time"] = "of all steps; its parts are means over all ranks";
  if (const std::string sharded = ShardedText(answer); !sharded.empty()) record["sharded"] = sharded;
  return record;
}

Record SimulatedCells(const Record& mesh) {
  const Record parts = mesh.value("parts_s", Record::object());
  const Record wire = parts.value("wire", Record::object()), wait = parts.value("wait", Record::object());
  const double total = NumberIn(mesh, "seconds");
  const auto axis = [&](const char* name) { return NumberIn(wire, name) + NumberIn(wait, name); };
  const double shared = NumberIn(parts, "reduction") + NumberIn(parts, "agreement") + NumberIn(parts, "gathering");
  const double hidden = Sum(mesh.value("hidden_s", Record::object()));
  Record record;
  record["mesh"] = mesh.value("mesh", "");
  record["ranks"] = mesh.value("ranks", 0);
  record["time"] = HumanSeconds(total);
  record["tokens_per_s"] = HumanCount(NumberIn(mesh, "tokens_per_s"));
  record["flops"] = absl::StrFormat("%.4g", NumberIn(mesh, "flops_per_s_of_rank") / 1e12);
  record["compute"] = Percent(NumberIn(parts, "compute"), total);
  record["tp"] = Percent(axis("tp"), total);
  record["cp"] = Percent(axis("cp"), total);
  record["pp"] = Percent(axis("pp"), total);
  record["dp"] = Percent(axis("dp") + shared, total);
  record["imbalance"] = Percent(NumberIn(parts, "imbalance"), total);
  record["apply"] = Percent(NumberIn(parts, "apply"), total);
  record["hidden"] = Percent(hidden, hidden + Sum(wire) + NumberIn(parts, "reduction") + NumberIn(parts, "gathering"));
  record["bytes"] = HumanBytes(NumberIn(mesh, "bytes"));
  record["share"] = Percent(NumberIn(mesh, "bytes"), NumberIn(mesh, "device_bytes"));
  record["networks"] = NetworksText(mesh);
  return record;
}

}  // namespace

void WriteSimulation(const OutputOptions& options, const Record& answer, std::ostream& out) {
  WriteMeshTables(options, SimulationAssumptions(answer), MeshesOf(answer),
                  {&SimulatedCells,
                   {{"mesh", "mesh", 4, true},
                    {"ranks", "ranks"},
                    {"time", "time"},
                    {"tokens_per_s", "tokens/s"},
                    {"flops", "TFLOP/s a rank"},
                    {"compute", "compute"},
                    {"tp", "tp"},
                    {"cp", "cp"},
                    {"pp", "bubble"},
                    {"dp", "dp"},
                    {"imbalance", "imbalance"},
                    {"apply", "apply"},
                    {"hidden", "wires hidden"},
                    {"bytes", "bytes a rank"},
                    {"share", "of device"},
                    {"networks", "networks", 8, true}}},
                  out);
}

}  // namespace stemma::cli
