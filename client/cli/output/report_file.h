// A file that is written once, at the end of a long command, and must be known to be writable before it begins.
//
// Open leaves an existing file as it is; Write replaces its content. A file that Open made and nothing wrote is removed
// again. Whatever can be opened for writing will do, /dev/stdout and pipes included.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"

namespace stemma::cli {

class ReportFile {
 public:
  // Errors name the path and why it cannot be written.
  static absl::StatusOr<ReportFile> Open(const std::string& path);
  ReportFile(ReportFile&&) = default;
  ReportFile& operator=(ReportFile&&) = delete;
  ~ReportFile();

  absl::Status Write(std::string_view content);

 private:
  ReportFile(std::string path, UniqueFd fd, bool created)
      : path_(std::move(path)), fd_(std::move(fd)), created_(created) {}

  std::string path_;
  UniqueFd fd_;
  bool created_ = false;
  bool written_ = false;
};

}  // namespace stemma::cli
