// A trace as the commands use it: when it is opened its lines are found and not parsed, so that what a command does not
// read costs it no more than the bytes; then read request by request, so that memory holds one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/trace/trace.h"

namespace stemma::cli {

class TraceFile {
 public:
  // Errors: exit code 2, naming the file; what is wrong in a line of a request, also its length, is said by Read.
  static absl::StatusOr<TraceFile> Open(const std::string& path, size_t line_bytes_max = kTraceLineBytesMax);

  const std::string& path() const { return path_; }
  // SHA-256 of the file's bytes, hexadecimal: request ids derive from it.
  const std::string& digest() const { return reader_.digest(); }
  std::string short_digest() const { return digest().substr(0, 16); }
  int64_t num_requests() const { return static_cast<int64_t>(places_.size()); }

  // The line in the file, from 1, of request `index`, from 0.
  int64_t LineOf(int64_t index) const { return places_[index].line; }
  // The index of the request on that line; line 0: the first. Errors: exit code 2.
  absl::StatusOr<int64_t> IndexOfLine(int64_t line) const;

  // Errors: exit code 2, naming the file and the line.
  absl::StatusOr<TraceLine> Read(int64_t index);
  // Reads the requests from index `begin` to before `end`, so that a broken line is reported before anything is sent.
  // Errors as of Read.
  absl::Status Check(int64_t begin, int64_t end);

 private:
  TraceFile(std::string path, TraceReader reader, std::vector<TracePlace> places);

  std::string path_;
  TraceReader reader_;
  std::vector<TracePlace> places_;
};

}  // namespace stemma::cli
