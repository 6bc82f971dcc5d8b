// OpenSSL at the end of a process.
#pragma once

namespace stemma {

// Has OpenSSL leave to the system what it holds when the process exits. It would free it in exit(), while threads of
// gRPC, which nobody waits for, may still be in a handshake, and these would crash. REQUIRES: nothing has used OpenSSL;
// so main calls it first.
void KeepOpenSslAtExit();

}  // namespace stemma
