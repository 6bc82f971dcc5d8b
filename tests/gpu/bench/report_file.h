// report.json: what was measured on a machine, part by part. Written whole after every row, so that a run that is cut
// or dies keeps what it had. tests/gpu/report_page.py makes the page of it.
//
//   {"schema": "stemma.gpu_report.v1", "taken": {"commit": ..., "date": ...},
//    "parts": {NAME: {"state": ..., "seconds": ..., "commit": ..., "device": ..., "date": ..., "facts": {...},
//                     "tables": {TABLE: [row, ...]}}}}
// state: "running", which stays if the process dies; "done"; "out of time"; "not all rows were asked for"; "failed:
// why". A row that could not be measured has "not_measured": why; one that only bounds its number has "cut": true,
// or "ended_by": why.
//
// One process at a time has it open: FILE.lock is locked meanwhile.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"
#include "nlohmann/json.hpp"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

inline constexpr char kReportSchema[] = "stemma.gpu_report.v1";
inline constexpr char kOutOfTime[] = "out of time", kNotAskedFor[] = "not asked for";

// What a part is measured on, and when.
struct PartOrigin {
  std::string device = {};  // its name; "cpu" where it has none
  std::string date = {};    // 2026-11-28
  bool tiny = false;        // small shapes
};

// Returns what a row says of an error: the first line, as LibTorch's messages go on for pages.
std::string ReasonOf(const absl::Status& status);

// Today's date, UTC.
std::string Today();

class ReportFile {
 public:
  // Goes on with the file at `path`, or begins one. Errors: the file is no report, or cannot be read or written, or
  // another process has it open.
  static absl::StatusOr<ReportFile> Open(const std::string& path);

  const nlohmann::json& part(const std::string& name) const;  // null where there is none
  const nlohmann::json& taken() const;                        // null where nothing was said
  // Says which build this is of, and when it was taken.
  void SetTaken(nlohmann::json taken);
  // Begins the part. What it has of the same build on the same device stays until it is measured anew; all else goes.
  void Begin(const std::string& name, const PartOrigin& origin = {});
  // Takes the place of the row that has the fields of `what`, or comes last. Returns the row that stands now: one that
  // has no number for want of time, or for it was not asked for, never takes the place of one that was measured.
  const nlohmann::json& AddRow(const std::string& name, const std::string& table, const nlohmann::json& what,
                               nlohmann::json row);
  void SetFact(const std::string& name, const std::string& fact, nlohmann::json value);
  void End(const std::string& name, const std::string& state, double seconds);
  // Ends a part that its process left running, after so many seconds: by its rows after exit status 0, else by what
  // ended it.
  void EndLeft(const std::string& name, int exit_status, double seconds);

 private:
  ReportFile(std::string path, UniqueFd lock, nlohmann::json report)
      : path_(std::move(path)), lock_(std::move(lock)), report_(std::move(report)) {}
  bool IsOfThisBuild(const nlohmann::json& part) const;
  void Write() const;  // dies where it cannot

  std::string path_;
  UniqueFd lock_;
  nlohmann::json report_;
};

}  // namespace stemma::testing
