#include "tests/gpu/bench/report_file.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/base/temporary_file.h"
#include "glog/logging.h"

namespace stemma::testing {
namespace {

using nlohmann::json;

constexpr uint64_t kReportBytesMax = uint64_t{64} << 20;
constexpr int kTimedOut = 124, kKilled = 137;  // exit statuses of timeout(1)

absl::StatusOr<UniqueFd> Lock(const std::string& path) {
  const std::string name = path + ".lock";
  UniqueFd fd(open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " cannot be written: ", strerror(errno), ": name another with --report"));
  }
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("another run writes ", path, ": wait until it ends, or name another with --report"));
  }
  return fd;
}

// What a row shows: nothing, for want of time or of a wish; a bound; a number, or why there is none.
int WorthOf(const json& row) {
  const std::string why = row.value("not_measured", "");
  if (why == kOutOfTime || why == kNotAskedFor) return 0;
  return row.value("cut", false) ? 1 : 2;
}

bool Has(const json& row, const json& what) {
  for (const auto& [key, value] : what.items()) {
    if (!row.contains(key) || row[key] != value) return false;
  }
  return true;
}

bool IsWhole(const json& part) {
  for (const json& table : part["tables"]) {
    if (std::any_of(table.begin(), table.end(), [](const json& row) { return WorthOf(row) < 2; })) return false;
  }
  return true;
}

}  // namespace

std::string ReasonOf(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) return "out of memory";
  constexpr size_t kReasonBytesMax = 200;
  const std::string message(status.message());
  return message.substr(0, std::min(message.find('\n'), kReasonBytesMax));
}

std::string Today() { return absl::FormatTime("%Y-%m-%d", RealClock().Now(), absl::UTCTimeZone()); }

absl::StatusOr<ReportFile> ReportFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(UniqueFd lock, Lock(path));
  if (!std::filesystem::exists(path)) {
    return ReportFile(path, std::move(lock), {{"schema", kReportSchema}, {"parts", json::object()}});
  }
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kReportBytesMax));
  json report = json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!report.is_object() || report.value("schema", "") != kReportSchema || !report["parts"].is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is no ", kReportSchema, ": move it away"));
  }
  return ReportFile(path, std::move(lock), std::move(report));
}

const json& ReportFile::part(const std::string& name) const {
  static const json& none = *new json;
  const auto found = report_["parts"].find(name);
  return found == report_["parts"].end() ? none : *found;
}

const json& ReportFile::taken() const {
  static const json& none = *new json;
  const auto found = report_.find("taken");
  return found == report_.end() ? none : *found;
}

// A build with changes has no name by which another run could tell that it is the same.
bool ReportFile::IsOfThisBuild(const json& part) const {
  const std::string commit = part.value("commit", "");
  return !commit.empty() && !absl::StrContains(commit, "unknown") && !absl::StrContains(commit, "with changes") &&
         taken().is_object() && commit == taken().value("commit", "");
}

void ReportFile::Begin(const std::string& name, const PartOrigin& origin) {
  json& part = report_["parts"][name];
  const bool stays = part.is_object() && IsOfThisBuild(part) && part.value("device", "") == origin.device &&
                     part.value("tiny", false) == origin.tiny;
  if (!stays) part = {{"facts", json::object()}, {"tables", json::object()}};
  part["state"] = "running";
  part["device"] = origin.device;
  part["date"] = origin.date;
  if (origin.tiny) part["tiny"] = true;
  // Parts of one report may be of several builds: the report is kept from run to run.
  if (taken().is_object()) part["commit"] = taken().value("commit", "");
  Write();
}

void ReportFile::SetTaken(json taken) {
  report_["taken"] = std::move(taken);
  Write();
}

const json& ReportFile::AddRow(const std::string& name, const std::string& table, const json& what, json row) {
  json& rows = report_["parts"][name]["tables"][table];
  if (rows.is_null()) rows = json::array();
  auto found = std::find_if(rows.begin(), rows.end(), [&](const json& other) { return Has(other, what); });
  if (found == rows.end()) {
    rows.push_back(std::move(row));
    found = std::prev(rows.end());
  } else if (WorthOf(row) >= WorthOf(*found)) {
    *found = std::move(row);
  }
  Write();
  return *found;
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

void ReportFile::EndLeft(const std::string& name, int exit_status, double seconds) {
  if (part(name).is_null() || part(name).value("state", "") != "running") return;
  std::string state = IsWhole(part(name)) ? "done" : kOutOfTime;
  if (exit_status == kTimedOut || exit_status == kKilled) {
    state = absl::StrCat(kOutOfTime, ", in a row");
  } else if (exit_status != 0) {
    state = absl::StrCat("failed: its process ended with status ", exit_status);
  }
  End(name, state, seconds);
}

void ReportFile::Write() const {
  const absl::Status written = ReplaceFile(path_, report_.dump(1) + "\n");
  CHECK(written.ok()) << written;
}

}  // namespace stemma::testing
