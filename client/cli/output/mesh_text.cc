#include "client/cli/output/mesh_text.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/output/answer_fields.h"
#include "common/base/human.h"

namespace stemma::cli {
namespace {

std::string DeviceText(const Record& answer) {
  const double threads = NumberIn(answer, "threads");
  return absl::StrCat(answer.value("device", ""), " with ", HumanBytes(NumberIn(answer, "device_bytes")),
                      threads > 0 ? absl::StrCat(" and ", Counted(threads, "thread")) : "",
                      NumberIn(answer, "ranks") == 1 ? " for " : " for each of ",
                      Counted(NumberIn(answer, "ranks"), "rank"));
}

std::string NetworkText(const Record& answer) {
  const Record networks = answer.value("networks", Record());
  if (!networks.is_object()) {
    return absl::StrFormat("%.4g GB/s and %.4g us a message between ranks", NumberIn(answer, "link_bytes_per_s") / 1e9,
                           NumberIn(answer, "link_latency_us"));
  }
  return absl::StrCat(networks.value("inside", ""), " in hosts of ",
                      Counted(NumberIn(networks, "ranks_per_host"), "rank"), ", ", networks.value("between", ""),
                      " between them");
}

Record RankingAssumptions(const Record& answer) {
  Record record;
  record["model"] = absl::StrCat(answer.value("model", ""), ": ", HumanCount(NumberIn(answer, "parameters")),
                                 " parameters, ", answer.value("dtype", ""));
  record["trace"] = TraceText(answer);
  record["device"] = DeviceText(answer);
  record["network"] = NetworkText(answer);
  record["time"] =
      "of all these steps, by default rates; with the exchange of gradients and weights between ranks, as if nothing "
      "hid it";
  return record;
}

Record RankedCells(const Record& mesh) {
  Record record;
  record["rank"] = mesh.value("rank", Record());
  record["mesh"] = mesh.value("mesh", "");
  record["time"] = HumanSeconds(NumberIn(mesh, "seconds"));
  record["exchange_s"] = HumanSeconds(NumberIn(mesh, "exchange_s"));
  record["tokens_per_s"] = HumanCount(NumberIn(mesh, "tokens_per_s"));
  record["bytes"] = HumanBytes(NumberIn(mesh, "bytes"));
  record["device_share"] = absl::StrFormat("%.1f%%", 100 * NumberIn(mesh, "device_share"));
  record["optimizer"] = mesh.value("optimizer", "");
  record["sharded"] = mesh.value("shard_parameters", false) ? Record("yes") : Record();
  record["imbalance"] = NumberIn(mesh, "imbalance") > 0 ? Record(HumanRatio(NumberIn(mesh, "imbalance"))) : Record();
  return record;
}

// Returns the table's columns. One says which meshes shard parameters, where any does.
std::vector<Column> Columns(const std::vector<Record>& meshes) {
  std::vector<Column> columns = {{"rank", "rank"},
                                 {"mesh", "mesh", 4, true},
                                 {"time", "time"},
                                 {"exchange_s", "exchange"},
                                 {"tokens_per_s", "tokens/s"},
                                 {"bytes", "bytes a rank"},
                                 {"device_share", "of device"},
                                 {"optimizer", "optimizer on", 12, true},
                                 {"imbalance", "imbalance"}};
  const auto sharded = [](const Record& mesh) { return mesh.value("shard_parameters", false); };
  if (std::any_of(meshes.begin(), meshes.end(), sharded)) columns.push_back({"sharded", "sharded", 7, true});
  return columns;
}

}  // namespace

void WriteMeshes(const OutputOptions& options, const Record& answer, std::ostream& out) {
  const AnsweredMeshes meshes = MeshesOf(answer);
  WriteMeshTables(options, RankingAssumptions(answer), meshes, {&RankedCells, Columns(meshes.possible)}, out);
}

}  // namespace stemma::cli
