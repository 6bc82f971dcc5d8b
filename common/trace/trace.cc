#include "common/trace/trace.h"

#include <algorithm>
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
constexpr size_t kMaxLineBytes = size_t{1} << 30;
constexpr size_t kReadBytes = 1 << 20;
constexpr size_t kIdDigits = 16;

absl::StatusOr<std::string> DigestOfFile(const std::string& path) {
  ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
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

}  // namespace

TraceReader::TraceReader(std::string path, std::string digest)
    : path_(std::move(path)), digest_(std::move(digest)), stream_(path_, std::ios::binary) {}

absl::Status TraceReader::Error(const std::string& message) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": line ", line_, ": ", message));
}

absl::StatusOr<TraceReader> TraceReader::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string resolved, ResolvePath(path));
  ASSIGN_OR_RETURN(std::string digest, DigestOfFile(resolved));
  TraceReader reader(resolved, std::move(digest));
  if (!reader.stream_) return absl::InternalError(absl::StrCat(path, ": cannot be read"));
  reader.path_ = path;
  std::string text;
  ASSIGN_OR_RETURN(const bool has_line, reader.NextLine(text));
  if (!has_line) return absl::InvalidArgumentError(absl::StrCat(path, ": is empty"));
  if (const absl::Status schema = CheckSchema(text); !schema.ok()) return reader.Error(std::string(schema.message()));
  return reader;
}

absl::StatusOr<bool> TraceReader::NextLine(std::string& text) {
  text.clear();
  ++line_;
  std::streambuf& buffer = *stream_.rdbuf();
  for (int c = buffer.sbumpc(); c != '\n'; c = buffer.sbumpc()) {
    if (c == std::char_traits<char>::eof()) return !text.empty();
    if (text.size() >= kMaxLineBytes) return Error(absl::StrCat("is longer than ", kMaxLineBytes, " bytes"));
    text.push_back(static_cast<char>(c));
  }
  return true;
}

absl::StatusOr<std::optional<TraceLine>> TraceReader::Next() {
  std::string text;
  do {
    ASSIGN_OR_RETURN(const bool has_line, NextLine(text));
    if (!has_line) return std::nullopt;
  } while (text.find_first_not_of(" \t\r") == std::string::npos);
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

absl::StatusOr<TraceWriter> TraceWriter::Create(const std::string& path, TraceArrays arrays) {
  ASSIGN_OR_RETURN(FileWriter file, FileWriter::Create(path));
  TraceWriter writer(std::move(file), arrays);
  const std::string schema = absl::StrCat("{\"schema\": \"", kSchema, "\"}\n");
  RETURN_IF_ERROR(writer.file_.Write(schema.data(), schema.size()));
  return writer;
}

absl::Status TraceWriter::Write(const TraceRequest& request) {
  ASSIGN_OR_RETURN(std::string line, FormatTraceRequest(request, arrays_));
  line.push_back('\n');
  return file_.Write(line.data(), line.size());
}

absl::Status TraceWriter::Close() { return file_.Close(); }

}  // namespace stemma
