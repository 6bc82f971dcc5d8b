// The names of spooled requests: EPOCH-N, the N-th plan of the server's start EPOCH.
//
// A start is a durable row of the journal before a request of it is spooled, so a name whose epoch the journal does not
// have says that the journal is not the one with which the file was written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stemma::server {

// Returns what the names of the start begin with.
std::string SpoolPrefix(uint64_t epoch);

// Returns the start that wrote a file of that name; nullopt: no start gives such a name.
std::optional<uint64_t> EpochOfSpoolName(std::string_view name);

}  // namespace stemma::server
