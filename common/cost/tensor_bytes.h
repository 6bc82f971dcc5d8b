// The bytes of one layer's tensors. Internal to common/cost.
//
// Inline: a planner asks hundreds of thousands of times what a prefix keeps, which is made of few of these numbers.
#pragma once

#include <cstdint>

#include "common/base/round_up.h"
#include "common/cost/byte_shape.h"
#include "common/cost/expert_rows.h"
#include "common/cost/tape_policy.h"
#include "stemma/v1/plan.pb.h"

namespace stemma {

inline constexpr int64_t kRowNumberBytes = 8;  // of the number of a row, or of an expert

// Returns what a row's choice of experts is kept in: their numbers and weights, and all probabilities where the weights
// are some of those (worker/ops/routing.h).
inline int64_t RoutingRowBytes(const Experts& experts, int64_t accumulate_bytes) {
  const int64_t probabilities = experts.weights_sum_to_one ? 0 : experts.count;
  return experts.per_token * (kRowNumberBytes + accumulate_bytes) + probabilities * accumulate_bytes;
}

// Bytes of a layer's tensors over so many rows. A tensor-parallel rank has some rows of what is between the blocks,
// which is as wide as the model, and all rows of its heads and columns: worker/ops/tensor_parallel.h. The shape
// outlives it.
struct TensorBytes {
  TensorBytes(const ByteShape& byte_shape, int64_t num_rows);
  // `row_parts`: of what is cut by rows over tensor-parallel ranks, the rows of one; for sums over several blocks.
  TensorBytes(const ByteShape& byte_shape, int64_t num_rows, int64_t row_parts);

  const ByteShape& shape;
  int64_t rows;
  int64_t input;      // of the layer; its output, and what is as large: the rank's own rows
  int64_t statistic;  // of a norm of own rows
  int64_t normed;     // rows of all ranks, as blocks read them, padded
  int64_t product;    // of the width of the model: all rows, of which the rank has a part of the sum
  int64_t q, kv, gradient_kv;
  int64_t ffn;       // with experts, of as many assignments of rows to them as are kept
  int64_t routing;   // who goes to which expert, and the weights, as they are kept; 0 without experts
  int64_t attended;  // the output of attention and its log-sum-exp
  // With QK-norm: what comes before it, kept with its statistics; those alone.
  int64_t qk_norm, qk_statistics, k_norm, k_statistics;
  // What ranks exchange; 0 where there is one: rows of all ranks that a gather makes of own ones, and its scratch; a
  // sum of products, padded, and its scratch.
  int64_t gathered, gather_scratch, sums;

  // Tapes without K and V: of a full layer; of rows of which only K and V are computed.
  int64_t tape(v1::TapePolicy policy) const;
  int64_t kv_only_tape(v1::TapePolicy policy) const;
};

inline TensorBytes::TensorBytes(const ByteShape& s, int64_t num_rows)
    : TensorBytes(s, num_rows, s.tp == 1 ? num_rows : DivideUp(num_rows, s.tp)) {}

inline TensorBytes::TensorBytes(const ByteShape& s, int64_t num_rows, int64_t row_parts)
    : shape(s),
      rows(num_rows),
      q(rows * s.run_bytes * s.config.q_size()),
      kv(rows * s.run_bytes * 2 * s.config.kv_size()),
      gradient_kv(rows * s.accumulate_bytes * 2 * s.config.kv_size()),
      ffn((s.config.experts ? KeptAssignments(*s.config.experts, rows) : rows) * s.run_bytes * s.config.ffn_size),
      routing(s.config.experts ? rows * RoutingRowBytes(*s.config.experts, s.accumulate_bytes) : 0),
      attended(q + rows * s.accumulate_bytes * s.config.num_heads),
      qk_statistics(s.config.qk_norm ? rows * s.accumulate_bytes * (s.config.num_heads + s.config.num_kv_heads) : 0),
      k_statistics(s.config.qk_norm ? rows * s.accumulate_bytes * s.config.num_kv_heads : 0) {
  qk_norm = s.config.qk_norm ? q + kv + qk_statistics : 0;
  k_norm = s.config.qk_norm ? kv + k_statistics : 0;
  input = row_parts * s.run_bytes * s.config.hidden_size;
  statistic = row_parts * s.accumulate_bytes;
  normed = s.tp * input;
  product = rows * s.run_bytes * s.config.hidden_size;
  gathered = s.tp > 1 ? normed : 0;
  gather_scratch = gathered;
  // What each rank adds and what comes of the others, in the run dtype; the sum has memory of its own where its dtype
  // is another.
  const int64_t of_sums = 2 * normed + (s.run_bytes == s.accumulate_bytes ? 0 : statistic * s.config.hidden_size);
  sums = s.tp > 1 ? of_sums : 0;
}

inline int64_t TensorBytes::tape(v1::TapePolicy policy) const {
  if (!KeepsInputs(policy)) return 0;
  int64_t bytes = input + routing;
  if (KeepsElementwise(policy)) bytes += 2 * normed + ffn;
  if (KeepsGateUp(policy)) bytes += 2 * ffn;
  if (KeepsQueries(policy)) bytes += q + qk_norm;
  if (KeepsAttention(policy)) bytes += attended + input + 2 * statistic;
  return bytes;
}

inline int64_t TensorBytes::kv_only_tape(v1::TapePolicy policy) const {
  if (!KeepsInputs(policy)) return 0;
  int64_t bytes = input + statistic;
  if (KeepsElementwise(policy)) bytes += normed;
  if (KeepsQueries(policy)) bytes += k_norm;
  return bytes;
}

}  // namespace stemma
