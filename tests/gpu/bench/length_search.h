// Finds the longest of so many lengths that runs: doubles until one does not, then bisects. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tests/gpu/bench/report_file.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

class LengthSearch {
 public:
  // Lengths are 1 to `most` steps.
  explicit LengthSearch(int64_t most) : most_(most), fails_(most + 1), next_(std::min<int64_t>(8, most)) {}

  bool is_over() const { return fails_ - runs_ <= 1; }
  int64_t next() const { return next_; }  // to be tried, while it is not over
  void Tell(bool next_runs) {
    (next_runs ? runs_ : fails_) = next_;
    next_ = fails_ > most_ ? std::min(2 * next_, most_) : (runs_ + fails_) / 2;
  }

  // Writes the row's fields; lengths are in so many tokens a step. A search that is not over only bounds the longest,
  // and shows nothing where no length ran.
  void Write(int64_t step, nlohmann::json& row) const {
    row["step"] = step;
    if (!is_over()) row["cut"] = true;
    if (!is_over() && runs_ == 0) {
      row["not_measured"] = kOutOfTime;
      return;
    }
    row["tokens"] = runs_ * step;
    row["is_the_positions"] = runs_ == most_;
  }

 private:
  friend absl::Status FindLongest(LengthSearch search, int64_t step,
                                  const std::function<absl::StatusOr<bool>(int64_t tokens)>& runs,
                                  const std::function<bool()>& time_is_up, nlohmann::json& row);

  const int64_t most_;
  int64_t runs_ = 0, fails_, next_;
};

// Tries lengths until the longest is known or time is up, and writes the row's fields. Where its memory ends a device's
// libraries may fail without saying that memory was short: what ran before is a bound still.
inline absl::Status FindLongest(LengthSearch search, int64_t step,
                                const std::function<absl::StatusOr<bool>(int64_t tokens)>& runs,
                                const std::function<bool()>& time_is_up, nlohmann::json& row) {
  absl::Status failed;
  while (failed.ok() && !search.is_over() && !time_is_up()) {
    const absl::StatusOr<bool> fits = runs(search.next() * step);
    if (fits.ok()) search.Tell(*fits);
    failed = fits.status();
  }
  if (!failed.ok() && search.runs_ == 0) return failed;
  search.Write(step, row);
  if (!failed.ok()) {
    row.erase("cut");  // more time would not give more
    row["ended_by"] = ReasonOf(failed);
  }
  return absl::OkStatus();
}

}  // namespace stemma::testing
