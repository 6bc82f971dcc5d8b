// When `stemma local` starts its server or a worker again. A pure decision: no clock, no process.
//
// A gang that becomes ready forgets earlier failures. Exit code 93 (do not restart) is final. So is 2 (configuration)
// until a gang was ready: what was good enough to serve is refused later for what has changed around it, such as memory
// that a process still holds which is about to end. What has served waits for a full disk (94) as long as it takes:
// somebody else makes room there.
#pragma once

#include <string>

namespace stemma::cli {

struct RestartDecision {
  bool restart = false;
  int delay_ms = 0;
  std::string reason;
};

class RestartPolicy {
 public:
  static constexpr int kRestartsMax = 3;         // in a row, without a ready gang between them
  static constexpr int kNoRoomDelayMs = 10'000;  // between looks at a full disk

  void GangIsReady() {
    restarts_ = 0;
    was_ready_ = true;
  }

  // A process ended by itself. `exit_code`: of an exit; -1 after a signal. `exit_text`: how it ended, and `name`: which
  // process, for the reason.
  RestartDecision ProcessEnded(int exit_code, const std::string& exit_text, const std::string& name = "the worker");

  // A worker ended because its generation did: not a failure of its own. It starts again when the lost one does.
  RestartDecision FollowerEnded(int exit_code, const std::string& exit_text, const std::string& name) const;

 private:
  // Returns why it must not start again, or "".
  std::string FinalReason(int exit_code, const std::string& ended) const;

  int restarts_ = 0;        // since the last ready gang
  bool was_ready_ = false;  // a gang, ever
};

}  // namespace stemma::cli
