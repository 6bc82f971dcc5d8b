// Problems of a request by field path, collected until its end: the first twenty travel, all are counted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/error.h"

namespace stemma {

class Violations {
 public:
  static constexpr size_t kKept = 20;

  // `uid`: of the group, or empty.
  void Add(const std::string& field, const std::string& description, const std::string& uid = "");
  bool empty() const { return count_ == 0; }
  // InvalidArgument INVALID_REQUEST, the first problem in its message. REQUIRES: !empty().
  absl::Status ToStatus() const;

 private:
  uint64_t count_ = 0;
  std::vector<FieldViolation> kept_;
  std::string first_uid_;
};

}  // namespace stemma
