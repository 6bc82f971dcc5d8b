#include "client/cli/calls/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <string_view>

#include "client/cli/output/command_status.h"

namespace stemma::cli {
namespace {

volatile sig_atomic_t interrupts = 0;

// Async-signal-safe.
void HandleInterrupt(int) {
  constexpr std::string_view kMessage = "\nstopping where nothing is left half done; once more leaves at once\n";
  if (interrupts > 0) _exit(static_cast<int>(ExitCode::kPartial));
  interrupts = 1;
  if (write(STDERR_FILENO, kMessage.data(), kMessage.size()) < 0) return;
}

}  // namespace

void CatchInterrupts() {
  struct sigaction action = {};
  action.sa_handler = HandleInterrupt;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool Interrupted() { return interrupts > 0; }

}  // namespace stemma::cli
