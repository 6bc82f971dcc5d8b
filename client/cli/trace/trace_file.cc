#include "client/cli/trace/trace_file.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/output/command_status.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

absl::StatusOr<std::vector<int64_t>> LinesOf(const std::string& path) {
  ASSIGN_OR_RETURN(TraceReader reader, TraceReader::Open(path));
  std::vector<int64_t> lines;
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<TraceLine> line, reader.Next());
    if (!line) return lines;
    lines.push_back(line->line);
  }
}

}  // namespace

TraceFile::TraceFile(std::string path, TraceReader reader, std::vector<int64_t> lines)
    : path_(std::move(path)), reader_(std::move(reader)), lines_(std::move(lines)) {}

absl::StatusOr<TraceFile> TraceFile::Open(const std::string& path) {
  auto lines = LinesOf(path);
  if (!lines.ok()) return UsageError(std::string(lines.status().message()));
  if (lines->empty()) return UsageError(absl::StrCat(path, ": holds no request"));
  auto reader = TraceReader::Open(path);
  if (!reader.ok()) return UsageError(std::string(reader.status().message()));
  return TraceFile(path, *std::move(reader), *std::move(lines));
}

absl::StatusOr<int64_t> TraceFile::IndexOfLine(int64_t line) const {
  if (line == 0) return 0;
  const auto found = std::find(lines_.begin(), lines_.end(), line);
  if (found == lines_.end()) return UsageError(absl::StrCat("--line ", line, ": ", path_, " has no request there"));
  return found - lines_.begin();
}

absl::StatusOr<TraceLine> TraceFile::Read(int64_t index) {
  while (true) {
    ASSIGN_OR_RETURN(std::optional<TraceLine> line, reader_.Next());
    if (!line) return absl::InternalError(absl::StrCat(path_, ": became shorter while it was read"));
    if (line->line == lines_[index]) return *std::move(line);
  }
}

}  // namespace stemma::cli
