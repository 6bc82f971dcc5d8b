#include "client/cli/trace/trace_file.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/output/command_status.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

absl::StatusOr<std::vector<TracePlace>> PlacesOf(TraceReader& reader) {
  std::vector<TracePlace> places;
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<TracePlace> place, reader.PassOver());
    if (!place) return places;
    places.push_back(*place);
  }
}

}  // namespace

TraceFile::TraceFile(std::string path, TraceReader reader, std::vector<TracePlace> places)
    : path_(std::move(path)), reader_(std::move(reader)), places_(std::move(places)) {}

absl::StatusOr<TraceFile> TraceFile::Open(const std::string& path, size_t line_bytes_max) {
  auto reader = TraceReader::Open(path, line_bytes_max);
  if (!reader.ok()) return UsageError(std::string(reader.status().message()));
  auto places = PlacesOf(*reader);
  if (!places.ok()) return UsageError(std::string(places.status().message()));
  if (places->empty()) return UsageError(absl::StrCat(path, ": holds no request"));
  return TraceFile(path, *std::move(reader), *std::move(places));
}

absl::StatusOr<int64_t> TraceFile::IndexOfLine(int64_t line) const {
  if (line == 0) return 0;
  const auto found = std::find_if(places_.begin(), places_.end(), [&](const TracePlace& p) { return p.line == line; });
  if (found == places_.end()) return UsageError(absl::StrCat("--line ", line, ": ", path_, " has no request there"));
  return found - places_.begin();
}

absl::StatusOr<TraceLine> TraceFile::Read(int64_t index) {
  reader_.GoTo(places_[index]);
  absl::StatusOr<std::optional<TraceLine>> line = reader_.Next();
  if (!line.ok()) return UsageError(std::string(line.status().message()));
  if (!*line) return absl::InternalError(absl::StrCat(path_, ": became shorter while it was read"));
  return **std::move(line);
}

absl::Status TraceFile::Check(int64_t begin, int64_t end) {
  for (int64_t index = begin; index < end; ++index) RETURN_IF_ERROR(Read(index).status());
  return absl::OkStatus();
}

}  // namespace stemma::cli
