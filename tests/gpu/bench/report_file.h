// report.json: what was measured on a machine, part by part. Written whole after every row, so that a run that is cut
// or dies keeps what it had. tests/gpu/report_page.py makes the page of it.
//
//   {"schema": "stemma.gpu_report.v1", "taken": {"commit": ..., "date": ...},
//    "parts": {NAME: {"state": ..., "seconds": ..., "facts": {...}, "tables": {TABLE: [row, ...]}}}}
// state: "running", which stays if the process dies; "done"; "out of time"; "failed: why". A row that could not be
// measured has "not_measured": why.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

inline constexpr char kReportSchema[] = "stemma.gpu_report.v1";

class ReportFile {
 public:
  // Goes on with the file at `path`, or begins one. Errors: the file is no report, or cannot be read.
  static absl::StatusOr<ReportFile> Open(const std::string& path);

  const nlohmann::json& part(const std::string& name) const;  // null where there is none
  // Says which build this is of, and when it was taken.
  void SetTaken(nlohmann::json taken);
  // Forgets what the part had, and begins it.
  void Begin(const std::string& name);
  // Takes the place of a row of the table that has this value in the field `key`; else comes last.
  void SetRow(const std::string& name, const std::string& table, const std::string& key, nlohmann::json row);
  void AddRow(const std::string& name, const std::string& table, nlohmann::json row);
  void SetFact(const std::string& name, const std::string& fact, nlohmann::json value);
  void End(const std::string& name, const std::string& state, double seconds);

 private:
  ReportFile(std::string path, nlohmann::json report) : path_(std::move(path)), report_(std::move(report)) {}
  void Write() const;  // dies where it cannot

  std::string path_;
  nlohmann::json report_;
};

}  // namespace stemma::testing
