// Ctrl-C and SIGTERM for a command that works through a list or writes a file in pieces: the first asks to stop, the
// second leaves at once with exit code 5 (stopped early).
#pragma once

namespace stemma::cli {

void CatchInterrupts();
bool Interrupted();

}  // namespace stemma::cli
