// What `trace check` finds in a request beyond its syntax: lengths, names, numbers. Pure. The server checks the same
// and what depends on its model besides.
#pragma once

#include <string>
#include <vector>

#include "common/trace.h"

namespace stemma {

// One text per problem: "groups[0].rollouts[2].old_log_probs: has 3 numbers, the response 4 tokens".
std::vector<std::string> CheckRequest(const TraceRequest& request);

}  // namespace stemma
