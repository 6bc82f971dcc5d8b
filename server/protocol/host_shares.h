// What each worker has of a machine that it shares with others of the gang: memory and cores are divided evenly. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "server/planner/memory_division.h"

namespace stemma::server {

// Where a worker has its memory, or its cores, from.
struct Pool {
  std::string machine;  // empty: not known
  std::string host;     // what its container is called
  std::string group;    // the control group whose limit they are; empty: the machine's are less
};

// Whether two workers have them from one place. Containers of one machine have host names of their own and share what
// no group of theirs limits. On one host a group that limits only one of them, by what was free when it looked, is
// both's.
bool ShareOne(const Pool& a, const Pool& b);

// Returns one worker's part of what it reported, where so many workers share its memory: of the host's memory, and of
// the device's where that is the host's. A device of its own stays its own. What is known stays so: its part is never
// 0.
WorkerMemory ShareOf(const WorkerMemory& reported, uint32_t workers);

// Returns what every worker has at least, number by number; 0 where none knows it. REQUIRES: one worker or more.
WorkerMemory SmallestOf(std::span<const WorkerMemory> workers);

// Returns the threads of one worker's compute where the configuration leaves them open; 0: all cores that it has.
uint32_t ThreadsOf(uint32_t cores, uint32_t workers);

}  // namespace stemma::server
