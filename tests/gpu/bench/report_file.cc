#include "tests/gpu/bench/report_file.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/base/temporary_file.h"
#include "glog/logging.h"

namespace stemma::testing {

using nlohmann::json;

constexpr uint64_t kReportBytesMax = uint64_t{64} << 20;

absl::StatusOr<ReportFile> ReportFile::Open(const std::string& path) {
  if (!std::filesystem::exists(path)) {
    return ReportFile(path, {{"schema", kReportSchema}, {"parts", json::object()}});
  }
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kReportBytesMax));
  json report = json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!report.is_object() || report.value("schema", "") != kReportSchema || !report["parts"].is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is no ", kReportSchema, ": move it away"));
  }
  return ReportFile(path, std::move(report));
}

const json& ReportFile::part(const std::string& name) const {
  static const json& none = *new json;
  const auto found = report_["parts"].find(name);
  return found == report_["parts"].end() ? none : *found;
}

void ReportFile::Begin(const std::string& name) {
  report_["parts"][name] = {{"state", "running"}, {"facts", json::object()}, {"tables", json::object()}};
  // Parts of one report may be of several builds: the report is kept from run to run.
  if (report_.contains("taken")) report_["parts"][name]["commit"] = report_["taken"].value("commit", "");
  Write();
}

void ReportFile::SetTaken(json taken) {
  report_["taken"] = std::move(taken);
  Write();
}

void ReportFile::SetRow(const std::string& name, const std::string& table, const std::string& key, json row) {
  for (json& other : report_["parts"][name]["tables"][table]) {
    if (other[key] != row[key]) continue;
    other = std::move(row);
    return Write();
  }
  AddRow(name, table, std::move(row));
}

void ReportFile::AddRow(const std::string& name, const std::string& table, json row) {
  report_["parts"][name]["tables"][table].push_back(std::move(row));
  Write();
}

void ReportFile::SetFact(const std::string& name, const std::string& fact, json value) {
  report_["parts"][name]["facts"][fact] = std::move(value);
  Write();
}

void ReportFile::End(const std::string& name, const std::string& state, double seconds) {
  report_["parts"][name]["state"] = state;
  report_["parts"][name]["seconds"] = seconds;
  Write();
}

void ReportFile::Write() const {
  const absl::Status written = ReplaceFile(path_, report_.dump(1) + "\n");
  CHECK(written.ok()) << written;
}

}  // namespace stemma::testing
