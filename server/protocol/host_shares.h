// What each worker has of a host that it shares with others of the gang: memory and cores are divided evenly. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "server/planner/memory_division.h"

namespace stemma::server {

// Returns one worker's part of what it reported, where so many workers share its host: of the host's memory, and of the
// device's where that is the host's. A device of its own stays its own. What is known stays so: its part is never 0.
WorkerMemory ShareOf(const WorkerMemory& reported, uint32_t workers_of_host);

// Returns what every worker has at least, number by number; 0 where none knows it. REQUIRES: one worker or more.
WorkerMemory SmallestOf(std::span<const WorkerMemory> workers);

// Returns the threads of one worker's compute where the configuration leaves them open; 0: all cores of its host.
uint32_t ThreadsOf(uint32_t cores, uint32_t workers_of_host);

}  // namespace stemma::server
