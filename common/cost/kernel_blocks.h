// How the CPU backend's kernels cut their operands: sizes of blocks that are in memory at one time.
//
// Read by the kernels (worker/backend/cpu), which allocate by them, and by the byte formulas (common/cost), which count
// what the kernels allocate. One definition keeps the two together; tests hold the formulas to measured bytes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/round_up.h"

namespace stemma {

// Attention: scores of a block of queries and a block of keys. Two blocks of scores and the packed operands stay in the
// second-level cache.
inline constexpr int64_t kAttentionKeyBlock = 128;
inline constexpr int64_t kAttentionQueryBlock = 128;
// Query heads of one kv head that share its packed keys and values: packing a block takes about a fifteenth as long as
// what one head computes with it.
inline constexpr int64_t kAttentionHeads = 2;
// Operands are packed in panels, at most so many elements wide.
inline constexpr int64_t kAttentionPanel = 32;
// A row of scores is longer than its queries by so many elements: rows of a power of two would meet in few sets of the
// first-level cache.
inline constexpr int64_t kAttentionScorePad = 16;

// Elements of the blocks that one thread's call of attention holds.
struct AttentionBlocks {
  int64_t heads, query_panels, keys, head_panels;

  // `group`: query heads of one kv head.
  constexpr AttentionBlocks(int64_t group, int64_t queries, int64_t all_keys, int64_t head_size)
      : heads(std::min(group, kAttentionHeads)),
        query_panels(RoundUp(std::min(queries, kAttentionQueryBlock), kAttentionPanel)),
        keys(std::min(all_keys, kAttentionKeyBlock)),
        head_panels(RoundUp(head_size, kAttentionPanel)) {}

  constexpr int64_t score_stride() const { return query_panels + kAttentionScorePad; }
  // Scores, transposed: [keys, score_stride].
  constexpr int64_t scores() const { return keys * score_stride(); }
  // Rows of queries or of their gradients; keys or values. Packed either way.
  constexpr int64_t packed_queries() const { return query_panels * head_panels; }
  constexpr int64_t packed_keys() const { return keys * head_panels; }

  // Scores of one head, each head's queries, keys and values.
  constexpr int64_t forward() const { return scores() + heads * packed_queries() + 2 * packed_keys(); }
  // Probabilities and their gradients of one head; each head's queries and the output's gradient, as rows and
  // transposed; keys and values.
  constexpr int64_t backward() const { return 2 * scores() + heads * 4 * packed_queries() + 2 * packed_keys(); }
};

// bf16 operands of a product with fp32 sums are widened so many at a time.
inline constexpr int64_t kUpcastRows = 512;         // rows of operands that are summed over rows
inline constexpr int64_t kUpcastVocabulary = 8192;  // vocabulary rows of the head's weight

}  // namespace stemma
