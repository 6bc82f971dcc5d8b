#include "client/cli/trace/length_distribution.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace stemma::cli {
namespace {

constexpr int64_t kLengthEnd = int64_t{1} << 31;

bool ParseLength(const std::string& text, int64_t* length) {
  return absl::SimpleAtoi(text, length) && *length >= 1 && *length < kLengthEnd;
}

bool ParsePositive(const std::string& text, double* number) {
  return absl::SimpleAtod(text, number) && std::isfinite(*number) && *number > 0;
}

}  // namespace

double UniformFrom(RandomValues& random) { return static_cast<double>(random.NextInteger() >> 11) * 0x1p-53; }

int64_t BelowFrom(RandomValues& random, int64_t bound) {
  return std::min(bound - 1, static_cast<int64_t>(UniformFrom(random) * static_cast<double>(bound)));
}

absl::StatusOr<LengthDistribution> LengthDistribution::Parse(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  LengthDistribution result;
  bool ok = false;
  if (parts[0] == "fixed" && parts.size() == 2) {
    result.kind_ = Kind::kFixed;
    ok = ParseLength(parts[1], &result.low_);
  } else if (parts[0] == "uniform" && parts.size() == 3) {
    result.kind_ = Kind::kUniform;
    ok = ParseLength(parts[1], &result.low_) && ParseLength(parts[2], &result.high_) && result.low_ <= result.high_;
  } else if (parts[0] == "lognormal" && parts.size() == 4) {
    result.kind_ = Kind::kLognormal;
    ok = ParsePositive(parts[1], &result.mean_) && ParsePositive(parts[2], &result.sigma_) &&
         ParseLength(parts[3], &result.high_);
  }
  if (ok) return result;
  return absl::InvalidArgumentError(
      absl::StrCat("length distribution \"", text, "\": expected fixed:128, uniform:64:256 or lognormal:200:0.5:1024"));
}

int64_t LengthDistribution::Sample(RandomValues& random) const {
  if (kind_ == Kind::kFixed) return low_;
  if (kind_ == Kind::kUniform) return low_ + BelowFrom(random, high_ - low_ + 1);
  // exp(mu + sigma z) has mean exp(mu + sigma^2 / 2).
  const double mu = std::log(mean_) - sigma_ * sigma_ / 2;
  const double length = std::round(std::exp(mu + sigma_ * random.NextNormal()));
  return static_cast<int64_t>(std::clamp(length, 1.0, static_cast<double>(high_)));
}

}  // namespace stemma::cli
