// Which groups each optimizer step of a request takes: groups in order, or shuffled per epoch, cut into mini-batches.
// Pure: the planner makes its steps of it, `stemma trace check` asks by it what a step could refuse.
//
// A shuffled order is a function of payload digest, seed and epoch, the same on every machine. Let first(s) be the
// first number of SplitMix64 started at state s, and h the 64-bit FNV-1a hash of the digest's hexadecimal text. The
// epoch's generator is SplitMix64 started at first(first(h) xor seed) + epoch, modulo 2^64. It shuffles 0 ... count - 1
// after Fisher and Yates, from the last place down: with `left` places left, place left - 1 is swapped with place
// next() modulo left. tests/oracle/payload.py writes the same down a second time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stemma/v1/training.pb.h"

namespace stemma {

struct MiniBatchRule {
  int64_t groups = 0;  // of a mini-batch; 0: all
  bool shuffle = false;
  uint64_t seed = 0;
  std::string payload_digest;
};

// Returns how many optimizer steps a request of so many groups makes, whatever the limits say; 2^63 at the most.
uint64_t NumSteps(const v1::UpdateHeader& header, uint64_t num_groups);

// Indices into the request's `count` groups, one list per step of the epoch; the last list may be shorter.
std::vector<std::vector<uint32_t>> MiniBatches(uint32_t count, const MiniBatchRule& rule, uint64_t epoch);

}  // namespace stemma
