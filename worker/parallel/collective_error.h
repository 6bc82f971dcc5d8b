// Thrown where a collective fails inside of a layer, whose code has no place for a status: the generation is over, and
// the step with it. CatchExceptions() in worker/engine/exceptions.h makes the status of it again.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace stemma::worker {

class CollectiveError final : public std::exception {
 public:
  explicit CollectiveError(absl::Status status) : status_(std::move(status)), text_(status_.ToString()) {}
  const absl::Status& status() const { return status_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  absl::Status status_;
  std::string text_;
};

inline void ThrowUnlessOk(absl::Status status) {
  if (!status.ok()) throw CollectiveError(std::move(status));
}

}  // namespace stemma::worker
