#include "common/base/process.h"

#include <sys/prctl.h>
#include <unistd.h>

namespace stemma {

void DieWithParent(pid_t parent, int signal) {
  // Only async-signal-safe calls: this runs between fork and exec.
  if (prctl(PR_SET_PDEATHSIG, signal) != 0 || getppid() != parent) _exit(1);
}

void IgnorePipeSignal() { signal(SIGPIPE, SIG_IGN); }

void IgnoreFileSizeSignal() { signal(SIGXFSZ, SIG_IGN); }

}  // namespace stemma
