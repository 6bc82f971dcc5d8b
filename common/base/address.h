// Network addresses as options hold them: HOST:PORT, [IPv6]:PORT, and whether only this machine can reach them.
//
// A host is an IPv4 literal, an IPv6 literal in brackets, or a name of letters, digits, `-` and `.`. Nothing is looked
// up: of names only `localhost` counts as loopback. Sockets of the file system (unix:) and URIs are refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace stemma {

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
  bool loopback = false;  // 127.0.0.0/8, ::1, localhost

  std::string Text() const;  // "127.0.0.1:7070", "[::1]:7070"
};

// Parses an address to listen on; port 0: any free port. Errors: InvalidArgument - the text and what to write instead.
absl::StatusOr<HostPort> ParseListenAddress(std::string_view text);

// Parses an address to connect to: the port is not 0.
absl::StatusOr<HostPort> ParseDialAddress(std::string_view text);

}  // namespace stemma
