// Work of equal pieces on several threads at once, for as long as the call takes. Called by whoever waits for it
// anyway.
#pragma once

#include <cstddef>
#include <functional>

namespace stemma {

// Calls `work` for each index below `count` once, on so many threads at most, of which the caller's is one, and returns
// when all calls have. Pieces are taken in order, by whichever thread is free. A process that may start no more threads
// does with those it has.
void ParallelFor(size_t count, size_t threads, const std::function<void(size_t)>& work);

// Returns how many threads this machine, or the container around the process, runs at a time, at least one.
size_t MachineThreads();

}  // namespace stemma
