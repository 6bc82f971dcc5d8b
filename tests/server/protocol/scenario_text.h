// A decision of the coordinator as lines of a scenario, and what an event's numbers stand for. scenario.h says the
// rest.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "server/protocol/events.h"
#include "tests/server/protocol/scenario_plans.h"

namespace stemma::server {

std::string ActionText(const Action& action);

// Returns the decision's lines of the log with their levels, but those of the level info.
std::string LogText(const Decision& decision);

// Whether the decision says that what came is ignored.
bool IsIgnored(const Decision& decision);

// Fills a Register from its line.
void FillRegister(const Command& command, internal::v1::Register& message);

// Fills a Ready from its line's words.
void FillReady(const std::map<std::string, std::string>& options, internal::v1::Ready& ready);

// Adds so many spans, as a worker records them.
void AddSpans(uint64_t count, v1::SpanList& list);

}  // namespace stemma::server
