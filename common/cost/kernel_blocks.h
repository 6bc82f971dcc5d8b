// How the CPU backend's kernels cut their operands: sizes of blocks that are in memory at one time.
//
// Read by the kernels (worker/backend/cpu), which allocate by them, and by the byte formulas (common/cost), which count
// what the kernels allocate. One definition keeps the two together; tests hold the formulas to measured bytes.
#pragma once

#include <cstdint>

namespace stemma {

// Attention: scores of a block of queries and a block of keys. Two blocks of scores stay in the second-level cache. A
// short causal call takes fewer queries at a time: half of a block on the diagonal is computed for nothing, which
// outweighs the better rate of larger products.
inline constexpr int64_t kAttentionKeyBlock = 512;
inline constexpr int64_t kAttentionQueryBlock = 128;
inline constexpr int64_t kAttentionShortQueryBlock = 32;
inline constexpr int64_t kAttentionShortQueries = 512;

// Rows of one block of queries.
inline constexpr int64_t AttentionQueryBlock(int64_t queries, bool causal) {
  return causal && queries <= kAttentionShortQueries ? kAttentionShortQueryBlock : kAttentionQueryBlock;
}

// bf16 operands of a product with fp32 sums are widened so many at a time.
inline constexpr int64_t kUpcastRows = 512;         // rows of operands that are summed over rows
inline constexpr int64_t kUpcastVocabulary = 8192;  // vocabulary rows of the head's weight

}  // namespace stemma
