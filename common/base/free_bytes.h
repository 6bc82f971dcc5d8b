// The room that a disk has left, and how much of it belongs to the server's journal: the server ends where a row finds
// none. Whoever writes beside the journal asks here before. Thread safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace stemma {

// What the server keeps at the least for the rows of the requests that it has accepted.
inline constexpr uint64_t kReservedForRowsBytes = 32 << 20;

// What ranks leave when they write checkpoints and exports: more, so that requests are still accepted after them.
inline constexpr uint64_t kLeftForJournalBytes = 2 * kReservedForRowsBytes;

// Returns how many bytes this user may still write to the file system that holds `path`; nullopt: it does not say, as
// where it cannot be asked or counts no blocks. Such a disk is written to: it is full when a write says so.
std::optional<uint64_t> FreeBytes(const std::string& path);

}  // namespace stemma
