// Whether the worker that `stemma local` started still serves its server. A pure decision: no clock, no process.
//
// A worker that stands still (stopped, or stuck in its device) does not end by itself. The server drops it after the
// lost-worker time; from then on it has no worker while ours lives, and ours has to be ended.
#pragma once

namespace stemma::cli {

class WorkerWatch {
 public:
  static constexpr int kDroppedMaxMs = 3'000;  // after the server dropped it: it may be about to end
  static constexpr int kUnseenMaxMs = 60'000;  // since its start, never seen at the server: it loads its libraries

  // Another worker was started.
  void Started() { *this = WorkerWatch(); }

  // The server was asked after `elapsed_ms` more: is a worker connected? True: ours is to be killed.
  bool IsLost(bool connected, int elapsed_ms) {
    seen_ = seen_ || connected;
    absent_ms_ = connected ? 0 : absent_ms_ + elapsed_ms;
    return absent_ms_ > (seen_ ? kDroppedMaxMs : kUnseenMaxMs);
  }

 private:
  bool seen_ = false;
  int absent_ms_ = 0;
};

}  // namespace stemma::cli
