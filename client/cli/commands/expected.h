// Expected losses and gradient norms of a replayed trace. A file of JSON lines: the first holds the tolerances, each
// other one optimizer step, by the trace's line and k, its index in the request.
//
//   {"schema": "stemma.expected.v1", "loss": {"absolute": 1e-6, "relative": 1e-5}, "grad_norm": {"relative": 1e-4}}
//   {"line": 2, "k": 0, "loss": 0.0123, "grad_norm": 1.75}
//
// A value passes when |value - expected| <= absolute + relative * |expected|; an absent tolerance is 0. Further keys of
// a step are ignored, so the output of `replay -o json` serves after a first line is put before it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/json_fields.h"

namespace stemma::cli {

struct Tolerance {
  double absolute = 0;
  double relative = 0;
};

class ExpectedSteps {
 public:
  // Errors: InvalidArgument naming the line of `text`.
  static absl::StatusOr<ExpectedSteps> Parse(std::string_view text);

  // Empty: within the tolerances. Else what differs, in one line.
  std::string Compare(int64_t line, int64_t k, double loss, double grad_norm) const;
  // Returns a line of text for each step that is expected of the trace's line, whose first `count` steps came.
  std::vector<std::string> Missing(int64_t line, int64_t count) const;
  size_t size() const { return steps_.size(); }

 private:
  struct Step {
    double loss = 0;
    double grad_norm = 0;
  };

  absl::Status ReadHeader(const JsonFields& fields);
  absl::Status ReadStep(const JsonFields& fields);

  Tolerance loss_;
  Tolerance grad_norm_;
  std::map<std::pair<int64_t, int64_t>, Step> steps_;
};

}  // namespace stemma::cli
