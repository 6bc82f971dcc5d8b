// Reasons of the coordinator in the log: each is a line of its own, at its level.
#pragma once

#include "server/protocol/events.h"

namespace stemma::server {

void Log(const LoggedReason& reason);

}  // namespace stemma::server
