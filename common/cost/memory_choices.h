// Numbers by which a server chooses how steps use memory. Read by the planner (server/planner), which chooses, and by
// `stemma model inspect --fit`, which says before anything runs what it would choose.
#pragma once

#include <array>
#include <cstdint>

namespace stemma {

// Share of a dedicated device that is reserved for its runtime and for fragmentation.
inline constexpr int64_t kDeviceReserveParts = 16;

// On CPU GEMMs do not get faster beyond so many rows, and a wave's activations leave the caches (make bench: one
// trajectory of 1,279 rows a wave runs 10 to 15 % faster than three); smaller waves leave memory to longer prompts.
// Where products run in tiles of rows, more are worth packing (server/planner/memory_division.cc).
inline constexpr int64_t kWaveRows = 2048;

// Blocks in which a prefix may be computed instead of whole.
inline constexpr std::array<int64_t, 7> kPrefixBlockRows = {8192, 4096, 2048, 1024, 512, 256, 128};

}  // namespace stemma
