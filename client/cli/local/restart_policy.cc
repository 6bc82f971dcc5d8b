#include "client/cli/local/restart_policy.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_codes.h"

namespace stemma::cli {
namespace {

constexpr int kFirstDelayMs = 200;

int DelayMs(int earlier_restarts) { return kFirstDelayMs << (2 * earlier_restarts); }  // 0.2, 0.8, 3.2 s

}  // namespace

std::string RestartPolicy::FinalReason(int exit_code, const std::string& ended) const {
  if (exit_code == kConfigurationExit && !was_ready_) return absl::StrCat(ended, ": its configuration is refused");
  if (exit_code == kDoNotRestartExit) return absl::StrCat(ended, ": it asks not to be restarted");
  return "";
}

RestartDecision RestartPolicy::ProcessEnded(int exit_code, const std::string& exit_text, const std::string& name) {
  const std::string ended = absl::StrCat(name, " ended with ", exit_text);
  if (std::string final = FinalReason(exit_code, ended); !final.empty()) return {.reason = std::move(final)};
  if (exit_code == kNoRoomExit && was_ready_) {
    return {.restart = true,
            .delay_ms = kNoRoomDelayMs,
            .reason = absl::StrCat(ended, ": the disk of --data is full; it is started again every ",
                                   kNoRoomDelayMs / 1000, " s until there is room")};
  }
  if (restarts_ == kRestartsMax) {
    return {.reason = absl::StrCat(ended, " and was not ready once in ", kRestartsMax, " restarts")};
  }
  const int delay_ms = DelayMs(restarts_);
  ++restarts_;
  return {.restart = true,
          .delay_ms = delay_ms,
          .reason = absl::StrCat(ended, "; restart ", restarts_, " of ", kRestartsMax, " in ", delay_ms, " ms")};
}

RestartDecision RestartPolicy::FollowerEnded(int exit_code, const std::string& exit_text,
                                             const std::string& name) const {
  const std::string ended = absl::StrCat(name, " ended with ", exit_text);
  if (std::string final = FinalReason(exit_code, ended); !final.empty()) return {.reason = std::move(final)};
  return {.restart = true,
          .delay_ms = DelayMs(std::max(restarts_ - 1, 0)),
          .reason = absl::StrCat(ended, " as its gang was lost; it starts again")};
}

}  // namespace stemma::cli
