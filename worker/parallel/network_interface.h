// The network interface that has an address of this host.
#pragma once

#include <optional>
#include <string>

namespace stemma::worker {

// Returns its name. `address`: an IP literal. Nothing: no interface of this host has it.
std::optional<std::string> InterfaceOf(const std::string& address);

}  // namespace stemma::worker
