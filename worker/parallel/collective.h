// The kinds of collectives, and what each moves. Free of LibTorch.
#pragma once

#include <cstdint>
#include <string_view>

namespace stemma::worker {

enum class CollectiveKind { kAllReduceSum, kReduceScatterSum, kAllGather, kBroadcast, kSend, kReceive, kAgree };

// "all-reduce", "reduce-scatter", ...
std::string_view KindName(CollectiveKind kind);

// Returns the bytes that one of `size` ranks sends, or receives where that is more. `whole_bytes` is the tensor's
// bytes; of a reduce-scatter the input's and of an all-gather the output's, which hold all ranks' parts.
//
//   all-reduce, agreement        2 (size - 1) / size * whole   (ring: a reduce-scatter and an all-gather)
//   reduce-scatter, all-gather     (size - 1) / size * whole
//   broadcast                                          whole   (pipelined: each rank passes it on once)
//   send, receive                                      whole
//
// Nothing with one rank. Rounded down. It is what the algorithm needs: headers and a transport's copies are left out.
int64_t CollectiveBytes(CollectiveKind kind, int64_t whole_bytes, int size);

}  // namespace stemma::worker
