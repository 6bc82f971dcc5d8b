#include "client/cli/local/restart_policy.h"

#include "absl/strings/str_cat.h"

namespace stemma::cli {
namespace {

constexpr int kConfigurationExit = 2;
constexpr int kDoNotRestartExit = 93;
constexpr int kFirstDelayMs = 200;

}  // namespace

RestartDecision RestartPolicy::WorkerEnded(int exit_code, const std::string& exit_text) {
  const std::string ended = absl::StrCat("the worker ended with ", exit_text);
  if (exit_code == kConfigurationExit) return {.reason = absl::StrCat(ended, ": its configuration is refused")};
  if (exit_code == kDoNotRestartExit) return {.reason = absl::StrCat(ended, ": it asks not to be restarted")};
  if (restarts_ == kRestartsMax) {
    return {.reason = absl::StrCat(ended, " and was not ready once in ", kRestartsMax, " restarts")};
  }
  const int delay_ms = kFirstDelayMs << (2 * restarts_);  // 0.2, 0.8, 3.2 s
  ++restarts_;
  return {.restart = true,
          .delay_ms = delay_ms,
          .reason = absl::StrCat(ended, "; restart ", restarts_, " of ", kRestartsMax, " in ", delay_ms, " ms")};
}

}  // namespace stemma::cli
