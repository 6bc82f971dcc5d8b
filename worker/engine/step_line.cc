#include "worker/engine/step_line.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/human.h"

namespace stemma::worker {

std::string StepLine(const internal::v1::StepKey& key, const PassSums& sums) {
  const int64_t peak = std::max({sums.prefix_forward_bytes, sums.suffix_bytes, sums.prefix_backward_bytes});
  std::string line =
      absl::StrCat("step ", key.step(), " of request ", key.request_id(), " (k ", key.k(), ", attempt ", key.attempt(),
                   "): prefix forward ", HumanSeconds(sums.prefix_forward_s), ", ", sums.waves,
                   sums.waves == 1 ? " wave " : " waves ", HumanSeconds(sums.suffix_s), ", prefix backward ",
                   HumanSeconds(sums.prefix_backward_s), "; ", sums.tokens_computed, " of ", sums.tokens_logical,
                   " rows computed; peak ", HumanBytes(static_cast<double>(peak)), " above the state");
  const int64_t copied = sums.offload.bytes_out + sums.offload.bytes_in;
  if (copied > 0) absl::StrAppend(&line, "; ", HumanBytes(static_cast<double>(copied)), " copied for offload");
  return line;
}

}  // namespace stemma::worker
