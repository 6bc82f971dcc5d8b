// Trace files (.jsonl): the first line is {"schema": "stemma.trace.v1"}, then one UpdateActor request a line. Read and
// written line by line; one line is in memory at a time, so a line that is too long is neither read nor written.
//
// Errors name the file, the line (from 1) and the field's path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file.h"
#include "common/base/file_writer.h"
#include "common/trace/trace_json.h"

namespace stemma {

// The longest line, without its end. client/python/stemma/trace.py has the same.
inline constexpr size_t kTraceLineBytesMax = size_t{1} << 30;

struct TraceLine {
  int64_t line = 0;  // from 1; the schema is line 1
  TraceRequest request;
};

// Where a request lies in a file.
struct TracePlace {
  int64_t line = 0;     // from 1
  uint64_t offset = 0;  // of the line's first byte
};

class TraceReader {
 public:
  // Reads the file once for its digest, then checks the first line. Regular files only: the digest comes before the
  // lines.
  static absl::StatusOr<TraceReader> Open(const std::string& path, size_t line_bytes_max = kTraceLineBytesMax);

  // The next request; nothing at the end. A request_id that is absent is derived from (digest, line): the same file
  // gives the same ids. Blank lines are passed over. After an error the next call reads the next line; after one of the
  // disk there is none.
  absl::StatusOr<std::optional<TraceLine>> Next();
  // Passes over the next request without holding or parsing it, and returns where it lies, also where its line is too
  // long; nothing at the end. Errors: those of the disk.
  absl::StatusOr<std::optional<TracePlace>> PassOver();
  // Makes the request there, of this file, the next one.
  void GoTo(const TracePlace& place);

  const std::string& digest() const { return digest_; }  // SHA-256 of the file, hexadecimal

 private:
  TraceReader(std::string path, std::string digest, RegularFile file, size_t line_bytes_max);
  struct Line;
  // Reads the next line with a request, which is now `line_`; null: passes over it.
  absl::StatusOr<std::optional<TracePlace>> NextRequest(std::string* text);
  absl::StatusOr<std::optional<Line>> NextLine(std::string* text);
  absl::Status CheckLength(const Line& line) const;
  uint64_t offset() const { return offset_ - (buffer_.size() - next_); }  // of what comes next
  absl::Status FillBuffer();
  absl::Status Error(const std::string& message) const;

  std::string path_;
  std::string digest_;
  RegularFile file_;
  std::string buffer_;  // what was read of the file, and not yet passed on from `next_` on
  size_t next_ = 0;
  uint64_t offset_ = 0;  // of the file, behind the buffer
  size_t line_bytes_max_;
  int64_t line_ = 0;
};

class TraceWriter {
 public:
  // Fails if the file exists.
  static absl::StatusOr<TraceWriter> Create(const std::string& path, TraceArrays arrays = TraceArrays::kNumbers,
                                            size_t line_bytes_max = kTraceLineBytesMax);
  // Errors: InvalidArgument - a number that JSON does not hold, or a line that is too long, of which nothing is
  // written.
  absl::Status Write(const TraceRequest& request);
  absl::Status Close();

 private:
  TraceWriter(FileWriter file, TraceArrays arrays, size_t line_bytes_max)
      : file_(std::move(file)), arrays_(arrays), line_bytes_max_(line_bytes_max) {}

  FileWriter file_;
  TraceArrays arrays_;
  size_t line_bytes_max_;
};

}  // namespace stemma
