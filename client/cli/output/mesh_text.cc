#include "client/cli/output/mesh_text.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/human.h"

namespace stemma::cli {
namespace {

// 0 where there is none, or null.
double Number(const Record& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_number() ? found->get<double>() : 0;
}

std::string Counted(double count, const char* what) {
  return absl::StrFormat("%.0f %s%s", count, what, count == 1 ? "" : "s");
}

// "trace.jsonl: the first 8 requests, 88 steps, 279k tokens"
std::string TraceText(const Record& answer) {
  const std::string requests = Counted(Number(answer, "requests"), "request");
  const bool more = answer.value("more_requests", false);
  std::string text = absl::StrCat(answer.value("trace", ""), ": ",
                                  !more                             ? requests
                                  : Number(answer, "requests") == 1 ? "the first request"
                                                                    : absl::StrCat("the first ", requests));
  if (Number(answer, "steps") == 0) return text;
  return absl::StrCat(text, ", ", Counted(Number(answer, "steps"), "step"), ", ", HumanCount(Number(answer, "tokens")),
                      " tokens");
}

std::string DeviceText(const Record& answer) {
  const double threads = Number(answer, "threads");
  return absl::StrCat(answer.value("device", ""), " with ", HumanBytes(Number(answer, "device_bytes")),
                      threads > 0 ? absl::StrCat(" and ", Counted(threads, "thread")) : "",
                      Number(answer, "ranks") == 1 ? " for " : " for each of ",
                      Counted(Number(answer, "ranks"), "rank"));
}

Record Assumptions(const Record& answer) {
  Record record;
  record["model"] = absl::StrCat(answer.value("model", ""), ": ", HumanCount(Number(answer, "parameters")),
                                 " parameters, ", answer.value("dtype", ""));
  record["trace"] = TraceText(answer);
  record["device"] = DeviceText(answer);
  record["network"] = absl::StrFormat("%.4g GB/s and %.4g us a message between ranks",
                                      Number(answer, "link_bytes_per_s") / 1e9, Number(answer, "link_latency_us"));
  record["time"] =
      "of all these steps, by default rates; with the exchange of gradients and weights between ranks, as if nothing "
      "hid it";
  return record;
}

Record Cells(const Record& mesh) {
  Record record;
  record["rank"] = mesh.value("rank", Record());
  record["mesh"] = mesh.value("mesh", "");
  record["time"] = HumanSeconds(Number(mesh, "seconds"));
  record["exchange_s"] = HumanSeconds(Number(mesh, "exchange_s"));
  record["tokens_per_s"] = HumanCount(Number(mesh, "tokens_per_s"));
  record["bytes"] = HumanBytes(Number(mesh, "bytes"));
  record["device_share"] = absl::StrFormat("%.1f%%", 100 * Number(mesh, "device_share"));
  record["optimizer"] = mesh.value("optimizer", "");
  record["imbalance"] = Number(mesh, "imbalance") > 0 ? Record(HumanRatio(Number(mesh, "imbalance"))) : Record();
  return record;
}

}  // namespace

void WriteMeshes(const OutputOptions& options, const Record& answer, std::ostream& out) {
  std::vector<Record> possible, impossible;
  for (const Record& mesh : answer.value("meshes", Record::array())) {
    if (mesh.value("possible", false)) {
      possible.push_back(Cells(mesh));
    } else {
      impossible.push_back(mesh);
    }
  }
  WriteFields(options, Assumptions(answer), out);
  if (!possible.empty()) {
    out << "\n";
    WriteRecords(options,
                 {{"rank", "rank"},
                  {"mesh", "mesh", 4, true},
                  {"time", "time"},
                  {"exchange_s", "exchange"},
                  {"tokens_per_s", "tokens/s"},
                  {"bytes", "bytes a rank"},
                  {"device_share", "of device"},
                  {"optimizer", "optimizer on", 12, true},
                  {"imbalance", "imbalance"}},
                 possible, out);
  }
  if (impossible.empty()) return;
  out << "\n";
  WriteRecords(options, {{"mesh", "impossible", 10, true}, {"reason", "why", 3, true}}, impossible, out);
}

}  // namespace stemma::cli
