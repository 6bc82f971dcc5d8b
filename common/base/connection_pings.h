// How either end of a connection finds out that the other is gone without a word, as when its machine lost power or a
// firewall forgot the connection: gRPC's keepalive pings. Server, workers and the CLI set them from here; the Python
// client has the same numbers (tests/repo/client_constants_test.py compares them).
#pragma once

namespace stemma {

inline constexpr int kPingEveryMs = 30'000;
// A connection whose ping is not answered within this is lost: 40 s after its last sign of life at the most.
inline constexpr int kPingAnsweredWithinMs = 10'000;
// The server ends connections that ping more often than this, as gRPC does by default at 5 minutes.
inline constexpr int kPingsApartMsMin = 20'000;
static_assert(kPingsApartMsMin < kPingEveryMs, "the server would end its own clients' connections");

}  // namespace stemma
