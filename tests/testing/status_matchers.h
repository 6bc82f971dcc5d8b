// What Debian's Abseil lacks: matchers on absl::Status and absl::StatusOr.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& status_or) {
  return status_or.status();
}

MATCHER(IsOk, "is OK") {
  *result_listener << "status: " << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}

// StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("layers"))
MATCHER_P2(StatusIs, code, message, "") {
  *result_listener << "status: " << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code && ::testing::Value(std::string(StatusOf(arg).message()), message);
}

// InvalidArgument whose message holds `text`.
inline auto Invalid(const std::string& text) {
  return StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr(text));
}

// A new empty folder that goes with the object.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = ::testing::TempDir() + "stemma-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace stemma::testing
