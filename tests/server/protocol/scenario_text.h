// An action of the coordinator as a line of a scenario. scenario.h says the rest.
#pragma once

#include <string>

#include "server/protocol/events.h"

namespace stemma::server {

std::string ActionText(const Action& action);

}  // namespace stemma::server
