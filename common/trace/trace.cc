#include "common/trace/trace.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"

namespace stemma {
namespace {

constexpr char kSchema[] = "stemma.trace.v1";
constexpr size_t kReadBytes = 1 << 20;
constexpr size_t kIdDigits = 16;

absl::StatusOr<std::string> DigestOf(const RegularFile& file) {
  Sha256 sha;
  std::vector<char> buffer(kReadBytes);
  for (uint64_t offset = 0; offset < file.bytes(); offset += buffer.size()) {
    const size_t size = std::min<uint64_t>(buffer.size(), file.bytes() - offset);
    RETURN_IF_ERROR(file.ReadAt(offset, buffer.data(), size));
    sha.Update({buffer.data(), size});
  }
  return sha.FinishHex();
}

absl::Status CheckSchema(const std::string& text) {
  const absl::StatusOr<nlohmann::json> root = ParseJson(text, {.max_depth = 4, .max_values = 100});
  const std::string expected = absl::StrCat("the first line must be {\"schema\": \"", kSchema, "\"}");
  if (!root.ok() || !root->is_object() || !root->contains("schema")) return absl::InvalidArgumentError(expected);
  if ((*root)["schema"] != kSchema || root->size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(expected, ", schema is ", JsonExcerpt((*root)["schema"])));
  }
  return absl::OkStatus();
}

std::string TooLong(uint64_t bytes, size_t line_bytes_max) {
  return absl::StrCat("is ", bytes, " bytes long, at most ", line_bytes_max,
                      " are read: put fewer groups into a request");
}

}  // namespace

struct TraceReader::Line {
  uint64_t bytes = 0;  // without its end
  bool blank = true;
};

TraceReader::TraceReader(std::string path, std::string digest, RegularFile file, size_t line_bytes_max)
    : path_(std::move(path)), digest_(std::move(digest)), file_(std::move(file)), line_bytes_max_(line_bytes_max) {}

absl::Status TraceReader::Error(const std::string& message) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": line ", line_, ": ", message));
}

absl::StatusOr<TraceReader> TraceReader::Open(const std::string& path, size_t line_bytes_max) {
  ASSIGN_OR_RETURN(const std::string resolved, ResolvePath(path));
  ASSIGN_OR_RETURN(RegularFile file, RegularFile::Open(resolved));
  ASSIGN_OR_RETURN(std::string digest, DigestOf(file));
  TraceReader reader(path, std::move(digest), std::move(file), line_bytes_max);
  std::string text;
  ASSIGN_OR_RETURN(const std::optional<Line> line, reader.NextLine(&text));
  if (!line) return absl::InvalidArgumentError(absl::StrCat(path, ": is empty"));
  RETURN_IF_ERROR(reader.CheckLength(*line));
  if (const absl::Status schema = CheckSchema(text); !schema.ok()) return reader.Error(std::string(schema.message()));
  return reader;
}

// Leaves the buffer empty at the end of the file, and for good where the disk fails.
absl::Status TraceReader::FillBuffer() {
  const uint64_t left = file_.bytes() - offset_;
  next_ = 0;
  buffer_.resize(std::min<uint64_t>(kReadBytes, left));
  const absl::Status status = file_.ReadAt(offset_, buffer_.data(), buffer_.size());
  offset_ += status.ok() ? buffer_.size() : left;
  if (!status.ok()) buffer_.clear();
  return status;
}

absl::StatusOr<std::optional<TraceReader::Line>> TraceReader::NextLine(std::string* text) {
  if (text != nullptr) text->clear();
  ++line_;
  Line line;
  bool ended = false;
  // A line that is too long is passed over to its end, so that the lines behind it keep their numbers.
  while (!ended) {
    if (next_ == buffer_.size()) RETURN_IF_ERROR(FillBuffer());
    if (buffer_.empty()) break;
    const std::string_view rest = std::string_view(buffer_).substr(next_);
    const std::string_view piece = rest.substr(0, rest.find('\n'));
    ended = piece.size() < rest.size();
    next_ += piece.size() + (ended ? 1 : 0);
    line.bytes += piece.size();
    line.blank = line.blank && piece.find_first_not_of(" \t\r") == std::string_view::npos;
    if (text != nullptr) text->append(piece.substr(0, line_bytes_max_ - text->size()));
  }
  if (!ended && line.bytes == 0) return std::nullopt;
  return line;
}

absl::Status TraceReader::CheckLength(const Line& line) const {
  return line.bytes > line_bytes_max_ ? Error(TooLong(line.bytes, line_bytes_max_)) : absl::OkStatus();
}

absl::StatusOr<std::optional<TracePlace>> TraceReader::NextRequest(std::string* text) {
  TracePlace place;
  while (true) {
    place = {.line = line_ + 1, .offset = offset()};
    ASSIGN_OR_RETURN(const std::optional<Line> line, NextLine(text));
    if (!line) return std::nullopt;
    if (text != nullptr) RETURN_IF_ERROR(CheckLength(*line));
    if (!line->blank) return place;
  }
}

absl::StatusOr<std::optional<TracePlace>> TraceReader::PassOver() { return NextRequest(/*text=*/nullptr); }

void TraceReader::GoTo(const TracePlace& place) {
  line_ = place.line - 1;
  if (offset() == place.offset) return;
  buffer_.clear();
  next_ = 0;
  offset_ = place.offset;
}

absl::StatusOr<std::optional<TraceLine>> TraceReader::Next() {
  std::string text;
  ASSIGN_OR_RETURN(const std::optional<TracePlace> place, NextRequest(&text));
  if (!place) return std::nullopt;
  absl::StatusOr<TraceRequest> request = ParseTraceRequest(text);
  if (!request.ok()) return Error(std::string(request.status().message()));
  v1::RequestHeader& header = *request->header.mutable_request();
  if (header.request_id().empty()) {
    header.set_request_id(absl::StrCat("trace-", digest_.substr(0, kIdDigits), "/", line_));
  } else if (const absl::Status id = CheckRequestId(header.request_id()); !id.ok()) {
    return Error(absl::StrCat("header.request.request_id: ", id.message()));
  }
  return TraceLine{line_, *std::move(request)};
}

absl::StatusOr<TraceWriter> TraceWriter::Create(const std::string& path, TraceArrays arrays, size_t line_bytes_max) {
  ASSIGN_OR_RETURN(FileWriter file, FileWriter::Create(path));
  TraceWriter writer(std::move(file), arrays, line_bytes_max);
  const std::string schema = absl::StrCat("{\"schema\": \"", kSchema, "\"}\n");
  RETURN_IF_ERROR(writer.file_.Write(schema.data(), schema.size()));
  return writer;
}

absl::Status TraceWriter::Write(const TraceRequest& request) {
  ASSIGN_OR_RETURN(std::string line, FormatTraceRequest(request, arrays_));
  if (line.size() > line_bytes_max_) {
    return absl::InvalidArgumentError(absl::StrCat("a request's line ", TooLong(line.size(), line_bytes_max_)));
  }
  line.push_back('\n');
  return file_.Write(line.data(), line.size());
}

absl::Status TraceWriter::Close() { return file_.Close(); }

}  // namespace stemma
