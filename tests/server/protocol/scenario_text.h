// An action of the coordinator as a line of a scenario, and what an event's numbers stand for. scenario.h says the
// rest.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "server/protocol/events.h"

namespace stemma::server {

std::string ActionText(const Action& action);

// Fills a Ready from its line's words.
void FillReady(const std::map<std::string, std::string>& options, internal::v1::Ready& ready);

// Adds so many spans, as a worker records them.
void AddSpans(uint64_t count, v1::SpanList& list);

}  // namespace stemma::server
