// A server's state machine that goes on from a journal, with clients and one worker that are played: what a restart
// does with the rows that it finds. No clock, no disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stemma/internal/v1/journal.pb.h"

namespace stemma::server {

struct PlayedLife {
  internal::v1::JournalState journal = {};  // of the lives before
  bool replays = true;                      // durability REPLAY
  bool reads_spool = true;                  // false: what was spooled cannot be read back
  std::string weights = "w";                // what the worker says of its weights begins so
  uint32_t steps = 2;                       // of the request that a client sends
  bool snapshots = false;                   // a snapshot ends the life's rows
};

inline constexpr uint64_t kPlayedRequestsKept = 3;

// Lives until nothing is left to do, or for some hundred events; returns the rows that were written. Dies where the
// server would, and when a row of its own cannot be folded.
std::vector<internal::v1::JournalRow> Play(const PlayedLife& life);

}  // namespace stemma::server
