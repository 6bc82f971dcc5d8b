// The order of groups in an epoch: a pure function of payload digest, seed and epoch, the same on every machine.
//
// Let first(s) be the first number of SplitMix64 started at state s, and h the 64-bit FNV-1a hash of the digest's
// hexadecimal text. The epoch's generator is SplitMix64 started at first(first(h) xor seed) + epoch, modulo 2^64. It
// shuffles 0 ... count - 1 after Fisher and Yates, from the last place down: with `left` places left, place left - 1 is
// swapped with place next() modulo left. tests/oracle/payload.py writes the same down a second time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stemma {

std::vector<uint32_t> ShuffledOrder(uint32_t count, const std::string& payload_digest, uint64_t seed, uint64_t epoch);

}  // namespace stemma
