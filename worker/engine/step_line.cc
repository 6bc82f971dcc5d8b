#include "worker/engine/step_line.h"

#include "absl/strings/str_cat.h"
#include "common/base/human.h"

namespace stemma::worker {
namespace {

std::string StepText(const internal::v1::StepKey& key) {
  return absl::StrCat("step ", key.step(), " of request ", key.request_id(), " (k ", key.k(), ", attempt ",
                      key.attempt(), ")");
}

}  // namespace

std::string StepLine(const internal::v1::StepKey& key, const PassSums& sums) {
  std::string line = absl::StrCat(StepText(key), ": prefix forward ", HumanSeconds(sums.prefix_forward_s), ", ",
                                  sums.waves, sums.waves == 1 ? " wave " : " waves ", HumanSeconds(sums.suffix_s),
                                  ", prefix backward ", HumanSeconds(sums.prefix_backward_s));
  if (sums.tokens_logical > 0) {
    absl::StrAppend(&line, "; ", sums.tokens_computed, " of ", sums.tokens_logical, " rows computed");
  }
  absl::StrAppend(&line, "; peak ", HumanBytes(static_cast<double>(sums.peak_bytes())), " above the state");
  const int64_t copied = sums.offload.bytes_out + sums.offload.bytes_in;
  if (copied > 0) absl::StrAppend(&line, "; ", HumanBytes(static_cast<double>(copied)), " copied for offload");
  return line;
}

std::string KeptLine(const internal::v1::StepKey& key, const PassSums& sums) {
  if (sums.offload.kept == 0) return "";
  return absl::StrCat(StepText(key), ": ", sums.offload.kept, sums.offload.kept == 1 ? " entry" : " entries",
                      " of the offloaded tape, ", HumanBytes(static_cast<double>(sums.offload.kept_bytes)),
                      ", stayed on the device, beyond what the plan says: host memory had no room in one piece; raise "
                      "host_memory_bytes (--host-memory)");
}

std::string SlowLine(const internal::v1::StepKey& key, std::string_view operation, double seconds, double predicted_s) {
  if (predicted_s <= 0 || seconds < kSlowFloorSeconds || seconds < kSlowMultiple * predicted_s) return "";
  return absl::StrCat(std::string(operation), " of ", StepText(key), " took ", HumanSeconds(seconds), ", ",
                      HumanRatio(seconds / predicted_s), " the ", HumanSeconds(predicted_s),
                      " that its plan predicts: is this machine overloaded, or out of memory?");
}

std::vector<std::string> SlowPhases(const internal::v1::StepKey& key, const PassSums& sums,
                                    const v1::PhaseSeconds& predicted) {
  std::vector<std::string> lines = {
      SlowLine(key, "prefix forward", sums.prefix_forward_s, predicted.prefix_forward()),
      SlowLine(key, "suffix waves", sums.suffix_s, predicted.suffix()),
      SlowLine(key, "prefix backward", sums.prefix_backward_s, predicted.prefix_backward())};
  std::erase(lines, "");
  return lines;
}

}  // namespace stemma::worker
