#include "common/cost/cost_layer.h"

#include <algorithm>

#include "common/cost/kernel_blocks.h"
#include "common/cost/tape_policy.h"

namespace stemma {
namespace {

bool Upcasts(const ByteShape& s) { return s.run_bytes != s.accumulate_bytes; }

// A weight's gradient in bf16: rows of both operands, of so many elements together, are upcast.
int64_t GradientOperands(const ByteShape& s, int64_t rows, int64_t elements) {
  return Upcasts(s) ? std::min(rows, kUpcastRows) * s.accumulate_bytes * elements : 0;
}

// Bytes per row of `elements` that attention computes in fp32 in a bf16 run.
int64_t UpcastRow(const ByteShape& s, int64_t elements) { return Upcasts(s) ? s.accumulate_bytes * elements : 0; }

// Scratch of one attention call for each thread: blocks of scores, as many blocks of widened keys or values, and
// `row_elements` of each query.
int64_t Scratch(const ByteShape& s, int64_t queries, int64_t keys, bool causal, int64_t blocks, int64_t row_elements) {
  const int64_t block_keys = std::min(kAttentionKeyBlock, keys);
  const int64_t scores = std::min(AttentionQueryBlock(queries, causal), queries) * block_keys;
  const int64_t widened = Upcasts(s) ? block_keys * s.config.head_size : 0;
  return s.threads * s.accumulate_bytes * (blocks * (scores + widened) + row_elements * queries);
}

// What the calls of one run's attention hold beside their operands: `kept` of each row of what its ancestor gives, then
// what each span gives, `own` of its rows; or, where spans are padded for one call, `padded` of each row of those, the
// padded operands included. Each call has scratch of so many blocks and so many elements of a query.
struct AttentionCalls {
  int64_t kept, own, padded, blocks, row_elements;
};

int64_t RunBytes(const ByteShape& s, const LayerRun& run, const AttentionCalls& calls) {
  const int64_t n = run.longest_rows;
  const int64_t given = run.padded_spans > 1 ? run.padded_spans * n * calls.padded : n * calls.own;
  const int64_t own = given + Scratch(s, n, n, /*causal=*/true, calls.blocks, calls.row_elements);
  if (run.ancestor_rows == 0) return own;
  const int64_t ancestor = Scratch(s, run.rows, run.ancestor_rows, /*causal=*/false, calls.blocks, calls.row_elements);
  return run.rows * calls.kept + std::max(own, ancestor);
}

// One run after the other.
int64_t AttentionBytes(const ByteShape& s, const LayerRows& l, const AttentionCalls& calls) {
  int64_t bytes = 0;
  for (const LayerRun& run : l.runs) bytes = std::max(bytes, RunBytes(s, run, calls));
  return bytes;
}

// Keys and values are padded as they are, what is computed on in the accumulate dtype.
int64_t PaddedKv(const ByteShape& s) { return s.run_bytes * 2 * s.config.kv_size(); }

// Outputs and log-sum-exps. Padded: q, k, v.
int64_t AttentionForwardBytes(const ByteShape& s, const LayerRows& l) {
  const int64_t q = s.accumulate_bytes * s.config.q_size(), part = q + s.accumulate_bytes * s.config.num_heads;
  return AttentionBytes(s, l,
                        {.kept = part, .own = part, .padded = part + q + PaddedKv(s), .blocks = 1, .row_elements = 0});
}

// dq of either; dk and dv of a span; scratch holds the scores' gradients too, and a delta of each query. Padded: q, k,
// v, the output, its gradient and its log-sum-exps.
int64_t AttentionBackwardBytes(const ByteShape& s, const LayerRows& l) {
  const int64_t dq = s.accumulate_bytes * s.config.q_size(), dkv = s.accumulate_bytes * 2 * s.config.kv_size();
  const int64_t operands = 3 * dq + PaddedKv(s) + s.accumulate_bytes * s.config.num_heads;
  return AttentionBytes(s, l,
                        {.kept = dq, .own = dq + dkv, .padded = dq + dkv + operands, .blocks = 2, .row_elements = 1});
}

// A layer's backward, part by part. Sums per row name what is there beside what the step itself makes.
class BackwardMoments {
 public:
  BackwardMoments(const RowBytes& row, const LayerRows& l, v1::TapePolicy policy, KvOwner owner)
      : s_(row.shape),
        l_(l),
        policy_(policy),
        owner_(owner),
        row_(row),
        d_(row_.input),
        f_(row_.ffn),
        qkv_(row_.q + row_.kv),
        kv_(owner == KvOwner::kWave ? row_.kv : 0) {}

  int64_t Peak() const {
    int64_t peak = std::max({Mlp(), AttentionItself(), Inputs()});
    if (!KeepsAttention(policy_)) peak = std::max(peak, AttentionAgain());
    if (KeepsAttention(policy_) && !KeepsQueries(policy_)) peak = std::max(peak, QueriesAgain());
    return peak;
  }

 private:
  // Policy S4: the norm, the QKV product with K and V once more, attention.
  int64_t AttentionAgain() const {
    const int64_t there = d_ + kv_ + d_ + row_.statistic + d_;  // x, norm1; dy
    const int64_t products = l_.rows * (there + 2 * qkv_ + row_.qk_statistics);
    const int64_t attention = l_.rows * (there + row_.q + row_.qk_norm + row_.attended + UpcastRow(s_, Queries())) +
                              AttentionForwardBytes(s_, l_);
    return std::max(products, attention);
  }

  int64_t Mlp() const {
    const bool again = !KeepsAttention(policy_);
    int64_t there = d_ + 2 * row_.statistic + kv_ + row_.attended + d_ + d_;  // x, x2, dy
    if (KeepsElementwise(policy_) || again) there += d_;                      // norm1
    if (KeepsQueries(policy_) || again) there += row_.q + row_.qk_norm;
    const int64_t down = l_.rows * (there + d_ + 3 * f_) + GradientOperands(s_, l_.rows, Hidden() + Ffn());
    const int64_t act = l_.rows * (there + d_ + 5 * f_);  // norm2, gate and up, d(act), d(gate and up)
    const int64_t gate_up = l_.rows * (there + d_ + 2 * f_) + GradientOperands(s_, l_.rows, Hidden() + 2 * Ffn());
    const int64_t norm = l_.rows * (there + d_ + std::max(d_, 2 * f_));  // d(norm2); dx2, or d(gate and up)
    return std::max({down, act, gate_up, norm});
  }

  // x, both statistics, norm1 where it is there, dx2.
  int64_t Residual() const {
    const bool norm1 = KeepsElementwise(policy_) || !KeepsQueries(policy_);
    return d_ + 2 * row_.statistic + (norm1 ? d_ : 0) + d_;
  }

  // Policy S3: the QKV product, with K and V once more.
  int64_t QueriesAgain() const { return l_.rows * (Residual() + kv_ + row_.attended + 2 * qkv_ + row_.qk_statistics); }

  int64_t AttentionItself() const {
    const int64_t there = Residual() + kv_ + row_.q + row_.qk_norm + row_.attended;
    const int64_t product = l_.rows * there + GradientOperands(s_, l_.rows, Hidden() + Queries());
    const int64_t gradients = row_.q + qkv_ + UpcastRow(s_, 3 * Queries());  // do; dq, dk, dv; q, do and o in fp32
    return std::max(product, l_.rows * (there + gradients) + AttentionBackwardBytes(s_, l_));
  }

  // What remains when attention's tensors are freed.
  int64_t Inputs() const {
    const int64_t there = Residual() + row_.qk_norm + qkv_;  // d(qkv)
    const int64_t norm1 = KeepsElementwise(policy_) || !KeepsQueries(policy_) ? 0 : d_;
    const int64_t added = owner_ == KvOwner::kPrefix ? row_.gradient_kv : 0;
    const int64_t heads = l_.rows * (there + qkv_ + added);  // dq, dk, dv
    const int64_t product =
        l_.rows * (there + norm1) + GradientOperands(s_, l_.rows, Hidden() + Queries() + 2 * s_.config.kv_size());
    return std::max({heads, product, l_.rows * (there + norm1 + 2 * d_)});  // d(norm1), dx
  }

  int64_t Hidden() const { return s_.config.hidden_size; }
  int64_t Ffn() const { return s_.config.ffn_size; }
  int64_t Queries() const { return s_.config.q_size(); }

  const ByteShape& s_;
  const LayerRows& l_;
  const v1::TapePolicy policy_;
  const KvOwner owner_;
  const RowBytes& row_;
  const int64_t d_, f_, qkv_;
  const int64_t kv_;  // own K and V
};

}  // namespace

RowBytes::RowBytes(const ByteShape& s)
    : shape(s),
      input(s.run_bytes * s.config.hidden_size),
      q(s.run_bytes * s.config.q_size()),
      kv(s.run_bytes * 2 * s.config.kv_size()),
      gradient_kv(s.accumulate_bytes * 2 * s.config.kv_size()),
      ffn(s.run_bytes * s.config.ffn_size),
      statistic(s.accumulate_bytes),
      attended(q + s.accumulate_bytes * s.config.num_heads),
      qk_statistics(s.config.qk_norm ? s.accumulate_bytes * (s.config.num_heads + s.config.num_kv_heads) : 0),
      k_statistics(s.config.qk_norm ? s.accumulate_bytes * s.config.num_kv_heads : 0) {
  qk_norm = s.config.qk_norm ? q + kv + qk_statistics : 0;
  k_norm = s.config.qk_norm ? kv + k_statistics : 0;
}

int64_t RowBytes::tape(v1::TapePolicy policy) const {
  if (!KeepsInputs(policy)) return 0;
  int64_t bytes = input;
  if (KeepsElementwise(policy)) bytes += 2 * input + ffn;
  if (KeepsGateUp(policy)) bytes += 2 * ffn;
  if (KeepsQueries(policy)) bytes += q + qk_norm;
  if (KeepsAttention(policy)) bytes += attended + input + 2 * statistic;
  return bytes;
}

int64_t RowBytes::kv_only_tape(v1::TapePolicy policy) const {
  if (!KeepsInputs(policy)) return 0;
  int64_t bytes = input + statistic;
  if (KeepsElementwise(policy)) bytes += input;
  if (KeepsQueries(policy)) bytes += k_norm;
  return bytes;
}

int64_t LayerForwardBytes(const RowBytes& row, const LayerRows& l, v1::TapePolicy policy) {
  const ByteShape& s = row.shape;
  const int64_t d = row.input, f = row.ffn, qkv = row.q + row.kv;
  const int64_t norm1 = 2 * d + row.statistic;  // with x
  const int64_t products = l.rows * (norm1 + 2 * qkv + row.qk_statistics);
  const int64_t heads = norm1 + qkv + row.qk_norm + row.attended;
  const int64_t attention = l.rows * (heads + UpcastRow(s, s.config.q_size())) + AttentionForwardBytes(s, l);
  const int64_t output = l.rows * (heads + d);
  // The MLP runs beside x, x2, K/V, the norms' statistics and what the policy keeps.
  int64_t there = 2 * d + 2 * row.statistic + row.kv;
  if (KeepsElementwise(policy)) there += d;  // norm1
  if (KeepsQueries(policy)) there += row.q + row.qk_norm;
  if (KeepsAttention(policy)) there += row.attended;
  const int64_t norm2 = KeepsElementwise(policy) ? d : 0;
  const int64_t gate_up = l.rows * (there + d + 2 * f);
  const int64_t act = l.rows * (there + norm2 + 3 * f);
  const int64_t down = l.rows * (there + norm2 + (KeepsGateUp(policy) ? 3 * f : f) + d);
  return std::max({products, attention, output, gate_up, act, down});
}

int64_t LayerCopyBytes(const RowBytes& row, int64_t rows, v1::TapePolicy policy) {
  return rows * (std::max(row.tape(policy), row.input) + row.input + row.kv / 2);  // x stays until then; y; V
}

int64_t LayerBackwardBytes(const RowBytes& row, const LayerRows& l, v1::TapePolicy policy, KvOwner owner) {
  return BackwardMoments(row, l, policy, owner).Peak();
}

int64_t KvOnlyForwardBytes(const RowBytes& row, int64_t rows) {
  return rows * (2 * row.input + row.statistic + 2 * row.kv + row.k_statistics);
}

int64_t KvOnlyCopyBytes(const RowBytes& row, int64_t rows, v1::TapePolicy policy) {
  return rows * (std::max(row.kv_only_tape(policy), row.input + row.statistic) + row.kv / 2);
}

int64_t KvOnlyBackwardBytes(const RowBytes& row, int64_t rows, v1::TapePolicy policy, KvOwner owner) {
  const ByteShape& s = row.shape;
  const int64_t there = 2 * row.input + row.statistic + (owner == KvOwner::kWave ? row.kv : 0);   // x, norm1
  const int64_t again = KeepsQueries(policy) ? 0 : row.k_norm + (s.config.qk_norm ? row.kv : 0);  // K and V once more
  const int64_t gradients = there + row.k_norm + row.kv;                                          // dk and dv, fused
  const int64_t product = rows * gradients + GradientOperands(s, rows, s.config.hidden_size + 2 * s.config.kv_size());
  return std::max({rows * (there + again), product, rows * (gradients + 2 * row.input)});  // d(norm1), dx
}

}  // namespace stemma
