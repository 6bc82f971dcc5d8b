#include "client/cli/commands/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "absl/strings/str_cat.h"

namespace stemma::cli {

absl::Status LrSchedule::Validate() const {
  if (warmup_steps < 0)
    return absl::InvalidArgumentError(absl::StrCat("--warmup-steps ", warmup_steps, " is negative"));
  if (!(min_lr_ratio >= 0 && min_lr_ratio <= 1)) {  // NaN included
    return absl::InvalidArgumentError(absl::StrCat("--min-lr-ratio ", min_lr_ratio, " is not within 0 and 1"));
  }
  if (curve == LrCurve::kConstant && (total_steps != 0 || min_lr_ratio != 0)) {
    const std::string unread =
        total_steps != 0 ? absl::StrCat("--total-steps ", total_steps) : absl::StrCat("--min-lr-ratio ", min_lr_ratio);
    return absl::InvalidArgumentError(
        unread +
        " says how a curve ends, and --lr-schedule constant has no end: give --lr-schedule linear or cosine, or leave "
        "it out");
  }
  if (curve != LrCurve::kConstant && total_steps <= warmup_steps) {
    return absl::InvalidArgumentError(
        absl::StrCat("--total-steps ", total_steps, " must be more than --warmup-steps ", warmup_steps));
  }
  return absl::OkStatus();
}

double LrSchedule::Factor(int64_t t) const {
  if (t < warmup_steps) return static_cast<double>(t + 1) / static_cast<double>(warmup_steps);
  if (curve == LrCurve::kConstant) return 1;
  const double progress = std::min(1.0, static_cast<double>(t - warmup_steps) / (total_steps - warmup_steps));
  const double fall = curve == LrCurve::kLinear ? 1 - progress : (1 + std::cos(std::numbers::pi * progress)) / 2;
  return min_lr_ratio + (1 - min_lr_ratio) * fall;
}

}  // namespace stemma::cli
