#include "common/base/process.h"

#include <sys/prctl.h>
#include <unistd.h>

namespace stemma {
namespace {

// Ends the process with the code that a shell reports for one that the signal ended. Only async-signal-safe calls.
void ExitBySignal(int signal_number) { _exit(128 + signal_number); }

}  // namespace

void DieWithParent(pid_t parent, int signal) {
  // Only async-signal-safe calls: this runs between fork and exec.
  if (prctl(PR_SET_PDEATHSIG, signal) != 0 || getppid() != parent) _exit(1);
}

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal_number : {SIGTERM, SIGINT}) sigaddset(&signals, signal_number);
  struct sigaction inherited = {};
  sigaction(SIGHUP, nullptr, &inherited);
  // One that is blocked would be waited for though it is ignored.
  if (inherited.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  return signals;
}

void EndAtSignalsAsFirstProcess() {
  if (getpid() != 1) return;
  for (const int signal_number : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction inherited = {};
    sigaction(signal_number, nullptr, &inherited);
    if (inherited.sa_handler != SIG_IGN) signal(signal_number, ExitBySignal);
  }
}

void IgnorePipeSignal() { signal(SIGPIPE, SIG_IGN); }

void IgnoreFileSizeSignal() { signal(SIGXFSZ, SIG_IGN); }

}  // namespace stemma
