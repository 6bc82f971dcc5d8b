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
constexpr double kSigmaMax = 10;  // of a logarithm: lengths of one deviation either way are apart by e^20

// The problem with a length; empty: none.
std::string ReadLength(const std::string& text, int64_t& length) {
  if (absl::SimpleAtoi(text, &length) && length >= 1 && length < kLengthEnd) return "";
  return absl::StrCat("\"", text, "\" is not a whole number from 1 to ", kLengthEnd - 1);
}

std::string ReadPositive(const std::string& text, double& number) {
  if (absl::SimpleAtod(text, &number) && std::isfinite(number) && number > 0) return "";
  return absl::StrCat("\"", text, "\" is not a finite number above 0");
}

std::string ReadSigma(const std::string& text, double& sigma) {
  if (const std::string problem = ReadPositive(text, sigma); !problem.empty()) return problem;
  if (sigma <= kSigmaMax) return "";
  return absl::StrCat("SIGMA is ", text, ", at most ", kSigmaMax,
                      " is taken: it is a deviation of the length's logarithm");
}

// Returns the first of them that is there.
std::string First(const std::vector<std::string>& problems) {
  const auto is_there = [](const std::string& problem) { return !problem.empty(); };
  const auto found = std::find_if(problems.begin(), problems.end(), is_there);
  return found == problems.end() ? "" : *found;
}

}  // namespace

double UniformFrom(RandomValues& random) { return static_cast<double>(random.NextInteger() >> 11) * 0x1p-53; }

int64_t BelowFrom(RandomValues& random, int64_t bound) {
  return std::min(bound - 1, static_cast<int64_t>(UniformFrom(random) * static_cast<double>(bound)));
}

absl::StatusOr<LengthDistribution> LengthDistribution::Parse(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  LengthDistribution result;
  std::string problem =
      "expected fixed:128, uniform:64:256 or lognormal:200:0.5:1024, each length a whole number from 1 up";
  if (parts[0] == "fixed" && parts.size() == 2) {
    result.kind_ = Kind::kFixed;
    problem = ReadLength(parts[1], result.low_);
  } else if (parts[0] == "uniform" && parts.size() == 3) {
    result.kind_ = Kind::kUniform;
    problem = First({ReadLength(parts[1], result.low_), ReadLength(parts[2], result.high_)});
    if (problem.empty() && result.low_ > result.high_) {
      problem = absl::StrCat("LOW is ", result.low_, " and above HIGH, ", result.high_, ": give the shorter one first");
    }
  } else if (parts[0] == "lognormal" && parts.size() == 4) {
    result.kind_ = Kind::kLognormal;
    problem = First(
        {ReadPositive(parts[1], result.mean_), ReadSigma(parts[2], result.sigma_), ReadLength(parts[3], result.high_)});
  }
  if (problem.empty()) return result;
  return absl::InvalidArgumentError(absl::StrCat("length distribution \"", text, "\": ", problem));
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
