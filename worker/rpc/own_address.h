// Which of this host's addresses other ranks reach it at. Knows no gRPC.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/address.h"

namespace stemma::worker {

// Checks an address that the user gives. Errors: InvalidArgument - no IP literal, or one that names no single host.
absl::Status CheckOwnAddress(std::string_view address);

// Checks that this host has such an address. Errors: InvalidArgument - it has not.
absl::Status CheckAddressIsHere(const std::string& address);

// Returns the address of this host, an IP literal, from which packets to the server leave; towards a server on loopback
// it is loopback. No packet is sent; the server's host is looked up where it is a name. Errors: Unavailable - the name
// is not known, or no route leads there.
absl::StatusOr<std::string> OwnAddressTowards(const HostPort& server);

}  // namespace stemma::worker
