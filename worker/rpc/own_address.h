// Which of this host's addresses other ranks reach it at. Knows no gRPC.
#pragma once

#include <netdb.h>

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

// Returns the address of this host, an IP literal, from which it reaches the server, whose host is looked up where it
// is a name; towards a server on loopback it is loopback. Errors: Unavailable - the name is not known, or no route
// leads there.
absl::StatusOr<std::string> OwnAddressTowards(const HostPort& server);

// Returns the address from which this host reaches the server, whose name has the addresses `targets`, each with the
// port. Of several it connects to one after the other, for a second each, and takes the first that answers: a name may
// have addresses to which a route leads, and nothing answers, as where IPv6 is dead. Where none answers, or there is
// one alone, nothing is sent, and the first to which a route leads counts. Errors: Unavailable - no route.
absl::StatusOr<std::string> OwnAddressTowardsOneOf(const HostPort& server, const addrinfo* targets);

}  // namespace stemma::worker
