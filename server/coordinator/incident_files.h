// The server's part of an incident folder (common/base/incidents.h): server.json - why the generation ended, what ran,
// what each rank did last; plan.json - the plan of the request that ran; server.log - the last lines of the log.
#pragma once

#include <string>

#include "server/protocol/incident.h"

namespace stemma::server {

// Writes it, and removes what is old. What cannot be written is a line in the log: an incident never makes another.
void WriteIncident(const std::string& data_directory, const Incident& incident);

}  // namespace stemma::server
