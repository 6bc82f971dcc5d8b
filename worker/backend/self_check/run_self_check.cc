#include "worker/backend/self_check/run_self_check.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace stemma::worker {
namespace {

struct Found {
  std::vector<CheckResult> results;
  std::string how;  // for the log
};

Found Check(const SelfCheckOptions& options) {
  if (auto kept = ReadRecord(options.data_directory, options.fingerprint)) {
    return {*std::move(kept), "as an earlier start found"};
  }
  const double begin = RealClock().MonotonicSeconds();
  std::vector<CheckResult> results =
      CheckBackend(options.candidate, options.reference,
                   {.dtype = options.dtype, .shape = options.fingerprint.shape, .large_cases = options.large_cases});
  const double seconds = RealClock().MonotonicSeconds() - begin;
  if (seconds > kSelfCheckSecondsMax) {
    const auto slowest =
        std::max_element(results.begin(), results.end(),
                         [](const CheckResult& a, const CheckResult& b) { return a.seconds < b.seconds; });
    LOG(WARNING) << "the self-check of kernels took " << seconds << " s, more than " << kSelfCheckSecondsMax
                 << "; the longest was " << slowest->kernel << " with " << slowest->seconds << " s";
  }
  // What a library could not allocate while another process still held the device may run at the next start.
  const bool may_pass =
      std::any_of(results.begin(), results.end(), [](const CheckResult& result) { return result.threw; });
  if (may_pass) LOG(WARNING) << "the result of the self-check is not kept, as a kernel failed: the next start tries it";
  if (!may_pass && !options.data_directory.empty()) {
    const absl::Status written = WriteRecord(options.data_directory, options.fingerprint, results);
    if (!written.ok()) LOG(WARNING) << "the result of the self-check is not kept: " << written.message();
  }
  return {std::move(results), absl::StrCat("checked in ", seconds, " s")};
}

}  // namespace

Backend RunSelfCheck(const SelfCheckOptions& options) {
  const Found found = Check(options);
  Backend backend = Admit(options.candidate, options.reference, found.results);
  for (const KernelOff& off : backend.kernels_off) {
    LOG(WARNING) << "kernel " << off.kernel << " is off, a slower one runs in its place: " << off.reason;
  }
  LOG(INFO) << "self-check of " << options.fingerprint.device_name << " in " << options.fingerprint.dtype << ": "
            << found.results.size() - backend.kernels_off.size() << " of " << found.results.size()
            << " kernels are in use, " << found.how;
  return backend;
}

}  // namespace stemma::worker
