// The order of groups in an epoch: a pure function of payload digest, seed and epoch, the same on every machine.
//
// SplitMix64, started at the FNV-1a hash of the digest, mixed with seed and epoch; Fisher-Yates from the
// last place down, index = next() modulo places left.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stemma {

std::vector<uint32_t> ShuffledOrder(uint32_t count, const std::string& payload_digest, uint64_t seed, uint64_t epoch);

}  // namespace stemma
