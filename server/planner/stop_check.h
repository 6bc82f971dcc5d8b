// How a long computation learns that nobody waits for it any more. Pure: what it asks is the caller's.
#pragma once

#include <functional>

namespace stemma::server {

// True once whoever waits has left; stays true. Empty: never.
using StopCheck = std::function<bool()>;

}  // namespace stemma::server
