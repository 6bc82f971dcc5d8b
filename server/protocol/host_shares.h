// What each worker has of a machine that it shares with others of the gang: memory and cores are divided evenly. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "server/planner/memory_division.h"

namespace stemma::server {

// Names what workers share: two with the same name have their memory, or cores, from one place. Containers of one
// machine have host names of their own and share what no control group of theirs (`group`, empty: none) limits. Where
// the machine is not known, as empty, it is the host.
std::string PoolOf(const std::string& machine, const std::string& host, const std::string& group);

// Returns one worker's part of what it reported, where so many workers share its memory: of the host's memory, and of
// the device's where that is the host's. A device of its own stays its own. What is known stays so: its part is never
// 0.
WorkerMemory ShareOf(const WorkerMemory& reported, uint32_t workers);

// Returns what every worker has at least, number by number; 0 where none knows it. REQUIRES: one worker or more.
WorkerMemory SmallestOf(std::span<const WorkerMemory> workers);

// Returns the threads of one worker's compute where the configuration leaves them open; 0: all cores that it has.
uint32_t ThreadsOf(uint32_t cores, uint32_t workers);

}  // namespace stemma::server
