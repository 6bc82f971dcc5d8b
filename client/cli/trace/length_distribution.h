// Lengths of synthetic prompts and responses: "fixed:128", "uniform:a:b" (both ends included),
// "lognormal:mean:sigma:max" (of the given mean before it is cut to 1 ... max). Pure; the same numbers on every machine
// of the same libm.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/random_values.h"

namespace stemma::cli {

double UniformFrom(RandomValues& random);                // in [0, 1)
int64_t BelowFrom(RandomValues& random, int64_t bound);  // in [0, bound)

class LengthDistribution {
 public:
  // Errors: InvalidArgument naming the text.
  static absl::StatusOr<LengthDistribution> Parse(const std::string& text);
  int64_t Sample(RandomValues& random) const;  // >= 1

 private:
  enum class Kind { kFixed, kUniform, kLognormal };
  Kind kind_ = Kind::kFixed;
  int64_t low_ = 1;  // the length itself when fixed
  int64_t high_ = 1;
  double mean_ = 0;
  double sigma_ = 0;
};

}  // namespace stemma::cli
