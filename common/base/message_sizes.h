// Sizes of gRPC messages between clients, server and worker. limits.message_bytes bounds what a client may send, and
// nothing else: what the server and its worker say to each other, and what clients receive, has these sizes, whatever
// that limit is.
//
// Rollouts and results travel in messages of a few MiB. One rollout is never cut, so its parts are bounded where it is
// admitted: with its ids it fits every receiver.
#pragma once

#include <cstdint>

namespace stemma {

// What a worker, its server and our clients receive in one message.
inline constexpr int kReceivedBytesMax = 64 << 20;
// A prompt, a rollout with its arrays, or a rollout's result: each alone in a message, with uid, ids and lineage.
inline constexpr uint64_t kUncutBytesMax = 60 << 20;
// A rollout's result, for each token of its response: a log-prob and an entropy, in fp64.
inline constexpr uint64_t kResultBytesPerToken = 16;
// Results: as many rollouts of one group as fit, at least one. gRPC's own clients receive 4 MiB.
inline constexpr uint64_t kResultChunkBytes = 2 << 20;
// Spans of a step's trace: of one rank, which sends them with its vote, and of all ranks, which an answer holds.
inline constexpr uint32_t kRankTraceSpansMax = 1 << 14;
inline constexpr uint32_t kTraceSpansMax = 1 << 16;
inline constexpr uint64_t kSpanNameBytesMax = 64;
inline constexpr uint64_t kSpanBytesMax = 256;  // of a span in a message: two names and nine numbers
// What a client keeps with a checkpoint, in the call and in its file.
inline constexpr uint64_t kClientStateBytesMax = 1u << 20;
static_assert(kTraceSpansMax * kSpanBytesMax <= kReceivedBytesMax / 4);

}  // namespace stemma
