// Which calls the attention of a wave's rows to their own keys is cut into.
//
// All spans are one causal call of the faster library where they are equally long and it takes such a batch. Else each
// long span that it takes alone is a call of its own, and the spans between two of those are one packed call of the
// other library: rollouts are rarely equally long, and what a long span gains is worth more than a call costs, which of
// a short one it is not. Read by FlashAttention. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace stemma::worker::cuda {

struct OwnCall {
  int64_t begin;              // its first row
  std::vector<int64_t> rows;  // of each of its spans, which lie behind each other
  bool dense;                 // of the faster library

  int64_t num_rows() const;
  int64_t end() const { return begin + num_rows(); }
};

// Scores of a span, of all its heads, from which it may be a call of its own: 1,916 rows of 32 heads.
inline constexpr int64_t kScoresOfLoneSpan = int64_t{112} << 20;
// The same while the start-up self-check tries such calls, on spans that are short enough for any count of heads: 182
// rows of 32.
inline constexpr int64_t kScoresOfCheckedSpan = int64_t{1} << 20;

bool EquallyLong(const std::vector<int64_t>& own_rows);

// `own_rows`: rows of each span, none of which is empty. `takes_batch`: whether the faster library takes all of them at
// once; `takes_alone`: whether it takes a span of so many rows alone. Always: the calls cover all rows in their order.
std::vector<OwnCall> OwnCallsOf(const std::vector<int64_t>& own_rows, bool takes_batch,
                                const std::function<bool(int64_t rows)>& takes_alone);

}  // namespace stemma::worker::cuda
