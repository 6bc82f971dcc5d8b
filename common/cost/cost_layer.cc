#include "common/cost/cost_layer.h"

#include <algorithm>

#include "common/cost/gradient_operands.h"
#include "common/cost/kernel_blocks.h"
#include "common/cost/moe_bytes.h"
#include "common/cost/tape_policy.h"

namespace stemma {
namespace {

constexpr int64_t kOwnTokenBytes = 2 * 8;  // a token's place among the rank's own, twice

// The gradients of the QKV product's weight, for `columns` of it, and of its bias: rows that a bias sums are upcast all
// at once.
int64_t QkvGradientOperands(const ByteShape& s, int64_t rows, int64_t columns) {
  const int64_t weight = GradientOperands(s, rows, s.config.hidden_size + columns);
  return s.config.qkv_bias && Upcasts(s) ? std::max(weight, rows * columns * s.accumulate_bytes) : weight;
}

// What attention computes in fp32 in a bf16 run: so many tensors as large as q.
int64_t UpcastQueries(const TensorBytes& t, int64_t tensors) {
  const ByteShape& s = t.shape;
  return Upcasts(s) ? t.rows * s.accumulate_bytes * tensors * s.config.q_size() : 0;
}

enum class Direction { kForward, kBackward };

// Blocks of one attention call, for each thread.
int64_t Scratch(const ByteShape& s, int64_t queries, int64_t keys, Direction direction) {
  const AttentionBlocks blocks(s.config.num_heads / s.config.num_kv_heads, queries, keys, s.config.head_size);
  const int64_t elements = direction == Direction::kForward ? blocks.forward() : blocks.backward();
  return s.threads * s.accumulate_bytes * elements;
}

// What the calls of one run's attention hold beside their operands: `kept` of each row of what its ancestor gives, then
// what each span gives, `own` of its rows; or, where spans are padded for one call, `padded` of each row of those, the
// padded operands included. Each call has its direction's scratch.
struct AttentionCalls {
  int64_t kept, own, padded;
  Direction direction;
};

int64_t AttentionRunBytes(const ByteShape& s, const LayerRun& run, const AttentionCalls& calls) {
  const int64_t n = run.longest_rows;
  const int64_t given = run.padded_spans > 1 ? run.padded_spans * n * calls.padded : n * calls.own;
  const int64_t own = given + Scratch(s, n, n, calls.direction);
  if (run.ancestor_rows == 0) return own;
  return run.rows * calls.kept + std::max(own, Scratch(s, run.rows, run.ancestor_rows, calls.direction));
}

// One run after the other.
int64_t AttentionBytes(const ByteShape& s, const LayerRuns& runs, const AttentionCalls& calls) {
  int64_t bytes = 0;
  for (const LayerRun& run : runs) bytes = std::max(bytes, AttentionRunBytes(s, run, calls));
  return bytes;
}

// Keys and values are padded as they are, what is computed on in the accumulate dtype.
int64_t PaddedKv(const ByteShape& s) { return s.run_bytes * 2 * s.config.kv_size(); }

// Outputs and log-sum-exps. Padded: q, k, v.
int64_t AttentionForwardBytes(const ByteShape& s, const LayerRuns& runs) {
  const int64_t q = s.accumulate_bytes * s.config.q_size(), part = q + s.accumulate_bytes * s.config.num_heads;
  return AttentionBytes(
      s, runs, {.kept = part, .own = part, .padded = part + q + PaddedKv(s), .direction = Direction::kForward});
}

// dq of either; dk and dv of a span. Padded: q, k, v, the output, its gradient and its log-sum-exps.
int64_t AttentionBackwardBytes(const ByteShape& s, const LayerRuns& runs) {
  const int64_t dq = s.accumulate_bytes * s.config.q_size(), dkv = s.accumulate_bytes * 2 * s.config.kv_size();
  const int64_t operands = 3 * dq + PaddedKv(s) + s.accumulate_bytes * s.config.num_heads;
  return AttentionBytes(
      s, runs, {.kept = dq, .own = dq + dkv, .padded = dq + dkv + operands, .direction = Direction::kBackward});
}

// A layer's backward, part by part. Sums name what is there beside what the step itself makes. Of several ranks each
// part gathers rows before its first product, and sums rows after its last one.
class BackwardMoments {
 public:
  BackwardMoments(const TensorBytes& t, const LayerRuns& runs, v1::TapePolicy policy, KvOwner owner,
                  const SharedKv& shared)
      : s_(t.shape),
        t_(t),
        runs_(runs),
        policy_(policy),
        owner_(owner),
        shared_(shared),
        d_(t.input),
        f_(t.ffn),
        qkv_(t.q + t.kv),
        kv_(owner == KvOwner::kPrefix ? 0 : t.kv) {}

  int64_t Peak() const {
    int64_t attending = std::max(Mlp(), AttentionItself());
    if (!KeepsAttention(policy_)) attending = std::max(attending, AttentionAgain());
    if (KeepsAttention(policy_) && !KeepsQueries(policy_)) attending = std::max(attending, QueriesAgain());
    return std::max({Gathering(), attending + shared_.gathered, Inputs()});
  }

 private:
  // K and V of all rows are on their way here: dy, the tape and own K/V.
  int64_t Gathering() const { return d_ + t_.tape(policy_) + kv_ + shared_.held + shared_.gathering; }

  int64_t Normed() const { return GatheredNormBytes(t_); }

  // Policy S4: the norm, the QKV product with K and V once more, attention and its output.
  int64_t AttentionAgain() const {
    const int64_t inputs = d_ + t_.routing + kv_ + t_.statistic + d_, there = inputs + t_.normed;  // x, norm1; dy
    const int64_t products = there + 2 * qkv_ + t_.qk_statistics;
    const int64_t heads = there + t_.q + t_.qk_norm + t_.attended;
    const int64_t attention = heads + UpcastQueries(t_, 1) + AttentionForwardBytes(s_, runs_);
    return std::max({inputs + Normed(), products, attention, heads + t_.sums});
  }

  int64_t Mlp() const {
    const bool again = !KeepsAttention(policy_);
    int64_t there = d_ + 2 * t_.statistic + kv_ + t_.attended + d_ + d_;  // x, x2, dy
    if (KeepsElementwise(policy_) || again) there += t_.normed;           // norm1
    if (KeepsQueries(policy_) || again) there += t_.q + t_.qk_norm;
    if (s_.config.experts) return there + MoeBackwardBytes(t_, policy_);
    const int64_t norm2 = KeepsElementwise(policy_) ? 0 : Normed() + (KeepsGateUp(policy_) ? 2 * f_ : 0);
    const int64_t gathered = t_.normed + 3 * f_ + t_.gathered;
    const int64_t down =
        there + gathered + std::max(t_.gather_scratch, GradientOperands(s_, t_.rows, Hidden() + Ffn()));
    const int64_t act = there + t_.normed + 5 * f_;  // norm2, gate and up, d(act), d(gate and up)
    const int64_t gate_up = there + t_.normed + 2 * f_ + GradientOperands(s_, t_.rows, Hidden() + 2 * Ffn());
    const int64_t norm = there + t_.product + std::max({d_, 2 * f_, t_.sums});  // d(norm2); dx2, or d(gate and up)
    return std::max({there + norm2, down, act, gate_up, norm});
  }

  bool KeepsNormed() const { return KeepsElementwise(policy_) || !KeepsQueries(policy_); }

  // x, both statistics, norm1 where it is there, dx2.
  int64_t Residual() const { return d_ + 2 * t_.statistic + (KeepsNormed() ? t_.normed : 0) + d_; }

  // Policy S3: the QKV product, with K and V once more.
  int64_t QueriesAgain() const {
    const int64_t there = Residual() + kv_ + t_.attended;
    return std::max(there - t_.normed + Normed(), there + 2 * qkv_ + t_.qk_statistics);
  }

  int64_t AttentionItself() const {
    const int64_t there = Residual() + kv_ + t_.q + t_.qk_norm + t_.attended;
    const int64_t operands = GradientOperands(s_, t_.rows, Hidden() + Queries());
    const int64_t product = there + t_.gathered + std::max({t_.gather_scratch, operands, t_.gathered > 0 ? t_.q : 0});
    const int64_t gradients = t_.q + qkv_ + UpcastQueries(t_, 3);  // do; dq, dk, dv; q, do and o in fp32
    return std::max(product, there + gradients + AttentionBackwardBytes(s_, runs_));
  }

  // What remains when attention's tensors are freed.
  int64_t Inputs() const {
    const int64_t there = Residual() + t_.qk_norm + qkv_;  // d(qkv)
    const int64_t norm1 = KeepsNormed() ? 0 : t_.normed;
    const int64_t reducing = Residual() + t_.qk_norm + qkv_ + shared_.reducing;  // dq, dk, dv
    const int64_t added = owner_ == KvOwner::kWave ? 0 : t_.gradient_kv;
    const int64_t heads = there + qkv_ + added + shared_.reduced;  // the same, and d(qkv)
    const int64_t operands = QkvGradientOperands(s_, t_.rows, Queries() + 2 * s_.config.kv_size());
    const int64_t sums = t_.product + std::max(d_, t_.sums);  // d(norm1), dx
    return std::max({reducing, heads, there + (norm1 > 0 ? Normed() : 0), there + norm1 + std::max(operands, sums)});
  }

  int64_t Hidden() const { return s_.config.hidden_size; }
  int64_t Ffn() const { return s_.config.ffn_size; }
  int64_t Queries() const { return s_.config.q_size(); }

  const ByteShape& s_;
  const TensorBytes& t_;
  const LayerRuns& runs_;
  const v1::TapePolicy policy_;
  const KvOwner owner_;
  const SharedKv shared_;
  const int64_t d_, f_, qkv_;
  const int64_t kv_;  // own K and V
};

// What the MLP holds beside its input, the norm's statistics and what attention keeps.
int64_t MlpForwardBytes(const TensorBytes& t, v1::TapePolicy policy) {
  const int64_t f = t.ffn, norm2 = KeepsElementwise(policy) ? t.normed : 0;
  const int64_t down = norm2 + (KeepsGateUp(policy) ? 3 * f : f) + std::max(t.input, t.sums);
  return std::max({t.normed + 2 * f, norm2 + 3 * f, down});
}

}  // namespace

int64_t EmbeddingBytes(const TensorBytes& t) {
  if (t.shape.tp == 1) return 0;
  // Rows that were looked up, and the same without other ranks' tokens.
  return 2 * t.product + t.rows * kOwnTokenBytes + t.sums;
}

int64_t LayerForwardBytes(const TensorBytes& t, const LayerRuns& runs, v1::TapePolicy policy, const SharedKv& shared) {
  const ByteShape& s = t.shape;
  const int64_t d = t.input, h = t.normed, qkv = t.q + t.kv;
  const int64_t gather = GatheredNormBytes(t);
  const int64_t sums = std::max(d, t.sums);
  const int64_t input = d + t.statistic;
  const int64_t products = input + h + 2 * qkv + t.qk_statistics;
  const int64_t gathering = input + h + qkv + t.qk_norm + shared.held + shared.gathering;
  const int64_t heads = input + h + qkv + t.qk_norm + t.attended + shared.held;
  const int64_t attention = heads + UpcastQueries(t, 1) + AttentionForwardBytes(s, runs);
  // The MLP runs beside x, x2, K/V, the norms' statistics and what the policy keeps.
  int64_t there = 2 * d + 2 * t.statistic + t.kv + shared.held;
  if (KeepsElementwise(policy)) there += h;  // norm1
  if (KeepsQueries(policy)) there += t.q + t.qk_norm;
  if (KeepsAttention(policy)) there += t.attended;
  const int64_t mlp = there + (s.config.experts ? MoeForwardBytes(t, policy) : MlpForwardBytes(t, policy));
  return std::max({input + gather, products, gathering, attention, heads + sums, there + gather, mlp});
}

int64_t LayerCopyBytes(const TensorBytes& t, v1::TapePolicy policy) {
  return std::max(t.tape(policy), t.input) + t.input + t.kv / 2;  // x stays until then; y; V
}

int64_t LayerBackwardBytes(const TensorBytes& t, const LayerRuns& runs, v1::TapePolicy policy, KvOwner owner,
                           const SharedKv& shared) {
  return BackwardMoments(t, runs, policy, owner, shared).Peak();
}

int64_t KvOnlyForwardBytes(const TensorBytes& t, v1::TapePolicy policy, const SharedKv& shared) {
  const int64_t input = t.input + t.statistic, there = input + t.normed;
  const int64_t kept = (KeepsElementwise(policy) ? t.normed : 0) + (KeepsQueries(policy) ? t.k_norm : 0);
  return std::max({there + 2 * t.kv + t.k_statistics, t.gathered > 0 ? there + t.input + t.gather_scratch : 0,
                   input + kept + t.kv + shared.held + shared.gathering});
}

int64_t KvOnlyCopyBytes(const TensorBytes& t, v1::TapePolicy policy) {
  return std::max(t.kv_only_tape(policy), t.input + t.statistic) + t.kv / 2;
}

int64_t KvOnlyBackwardBytes(const TensorBytes& t, v1::TapePolicy policy, KvOwner owner, const SharedKv& shared) {
  const ByteShape& s = t.shape;
  const int64_t there = t.input + t.normed + t.statistic + (owner == KvOwner::kWave ? t.kv : 0);  // x, norm1
  const int64_t again = KeepsQueries(policy) ? 0 : t.k_norm + (s.config.qk_norm ? t.kv : 0);      // K and V once more
  const int64_t gather = t.gathered > 0 && !KeepsElementwise(policy)
                             ? t.input + t.gather_scratch + (KeepsQueries(policy) ? t.k_norm : 0)
                             : 0;
  const int64_t gradients = there + t.k_norm + t.kv + shared.reduced;  // dk and dv, fused
  const int64_t operands = QkvGradientOperands(s, t.rows, 2 * s.config.kv_size());
  return std::max({there + std::max(again, gather), t.kv_only_tape(policy) + shared.reducing, gradients + operands,
                   gradients + t.product + std::max(t.input, t.sums)});  // d(norm1), dx
}

}  // namespace stemma
