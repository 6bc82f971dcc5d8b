#include <algorithm>

#include "common/cost.h"
#include "common/tape_policy.h"

namespace stemma {
namespace {

constexpr int64_t kIndexBytes = 16;   // token and position of a row
constexpr int64_t kUpcastRows = 512;  // rows of bf16 operands that worker/ops/linear.cc upcasts at a time
constexpr int64_t kUpcastVocabulary =
    8192;  // vocabulary rows of a bf16 weight that worker/ops/head.cc upcasts at a time

// worker/kernels/attention.cc: a block of scores for each thread in forward, two in backward; as many blocks of keys or
// values that are widened.
constexpr int64_t kKeyBlock = 512;
int64_t QueryBlock(int64_t queries, bool causal) { return causal && queries <= 512 ? 32 : 128; }

int64_t ScoreBlock(int64_t queries, int64_t keys, bool causal) {
  return std::min(QueryBlock(queries, causal), queries) * std::min(kKeyBlock, keys);
}

// Rows that one layer works on.
struct LayerRows {
  int64_t rows = 0;
  int64_t longest_rows = 0;   // of one span
  int64_t ancestor_rows = 0;  // 0: no ancestor call
  v1::TapePolicy policy = v1::S0;
};

// Bytes per row of a layer's tensors (worker/model/layer.h), and of sets of them.
class RowBytes {
 public:
  explicit RowBytes(const ByteShape& s) : e_(s.run_bytes), a_(s.accumulate_bytes), c_(s.config) {}

  int64_t input() const { return e_ * c_.hidden_size; }
  int64_t q() const { return e_ * c_.q_size(); }
  int64_t kv() const { return e_ * 2 * c_.kv_size(); }
  int64_t gradient_kv() const { return a_ * 2 * c_.kv_size(); }
  int64_t ffn() const { return e_ * c_.ffn_size; }
  int64_t statistic() const { return a_; }
  int64_t qk_norm() const { return c_.qk_norm ? q() + kv() + a_ * (c_.num_heads + c_.num_kv_heads) : 0; }
  int64_t attended() const { return q() + a_ * c_.num_heads; }        // merged output and log-sum-exp
  int64_t part() const { return a_ * (c_.q_size() + c_.num_heads); }  // the same of one attention call

  // A full layer's tape without K/V.
  int64_t tape(v1::TapePolicy policy) const {
    if (!KeepsInputs(policy)) return 0;
    int64_t bytes = input();
    if (KeepsElementwise(policy)) bytes += 2 * input() + ffn();
    if (KeepsGateUp(policy)) bytes += 2 * ffn();
    if (KeepsQueries(policy)) bytes += q() + qk_norm();
    if (KeepsAttention(policy)) bytes += attended() + input() + 2 * statistic();
    return bytes;
  }

  // The tape of rows of which only K and V are computed, without those.
  int64_t kv_only_tape(v1::TapePolicy policy) const {
    if (!KeepsInputs(policy)) return 0;
    int64_t bytes = input() + statistic();
    if (KeepsElementwise(policy)) bytes += input();
    if (KeepsQueries(policy) && c_.qk_norm) bytes += kv() + a_ * c_.num_kv_heads;
    return bytes;
  }

  // What lives through a full layer's MLP beside what the MLP makes: K/V, the residuals and what attention left.
  int64_t beside_mlp_forward(v1::TapePolicy policy) const {
    int64_t bytes = 2 * input() + 2 * statistic() + kv();
    if (KeepsElementwise(policy)) bytes += 2 * input();
    if (KeepsQueries(policy)) bytes += q() + qk_norm();
    if (KeepsAttention(policy)) bytes += attended();
    return bytes;
  }
  int64_t beside_mlp_backward(v1::TapePolicy policy) const {
    int64_t bytes = 2 * input() + 2 * statistic() + kv() + attended();
    if (KeepsElementwise(policy) || !KeepsAttention(policy)) bytes += input();      // norm1
    if (KeepsQueries(policy) || !KeepsAttention(policy)) bytes += q() + qk_norm();  // S4 made them for its attention
    return bytes;
  }

  // What the backward of attention reads, norm1 where it is there.
  int64_t beside_attention_backward(v1::TapePolicy policy) const {
    const int64_t norm1 = KeepsElementwise(policy) || !KeepsQueries(policy) ? input() : 0;
    return input() + statistic() + norm1 + q() + qk_norm() + kv() + attended();
  }

 private:
  const int64_t e_, a_;
  const ModelConfig& c_;
};

bool Upcasts(const ByteShape& s) { return s.run_bytes != s.accumulate_bytes; }

// bf16 attention is computed in fp32: `of_row` elements of each row.
int64_t UpcastBytes(const ByteShape& s, const LayerRows& l, int64_t of_row) {
  return Upcasts(s) ? s.accumulate_bytes * l.rows * of_row : 0;
}

int64_t LongestOf(const LayerRows& l) { return l.longest_rows > 0 ? std::min(l.longest_rows, l.rows) : l.rows; }

// Elements of one block of scores and one of widened keys.
int64_t BlockElements(const ByteShape& s, int64_t queries, int64_t keys, bool causal) {
  return ScoreBlock(queries, keys, causal) + (Upcasts(s) ? std::min(kKeyBlock, keys) * s.config.head_size : 0);
}
int64_t OwnBlock(const ByteShape& s, const LayerRows& l) {
  return BlockElements(s, LongestOf(l), LongestOf(l), /*causal=*/true);
}
int64_t AncestorBlock(const ByteShape& s, const LayerRows& l) {
  return l.ancestor_rows > 0 ? BlockElements(s, l.rows, l.ancestor_rows, /*causal=*/false) : 0;
}

// A layer's forward at its highest, its input and own K/V included.
int64_t LayerForwardBytes(const ByteShape& s, const LayerRows& l) {
  const RowBytes row(s);
  const auto scratch = [&](int64_t block) { return s.threads * s.accumulate_bytes * block; };
  const int64_t ancestor = l.ancestor_rows > 0 ? l.rows * row.part() : 0;
  // One call after the other.
  const int64_t ancestor_call = scratch(AncestorBlock(s, l));
  const int64_t own_call = scratch(OwnBlock(s, l)) + LongestOf(l) * row.part();
  const int64_t qkv_TX = s.config.qk_norm ? 0 : row.q() + row.kv();
  const int64_t before = 2 * row.input() + row.statistic() + row.q() + row.kv() + row.qk_norm();
  const int64_t products = l.rows * (before + qkv_TX);
  const int64_t attention = l.rows * (before + row.attended()) + ancestor + UpcastBytes(s, l, s.config.q_size()) +
                            std::max(ancestor_call, own_call);
  const int64_t act = l.rows * (row.beside_mlp_forward(l.policy) + 3 * row.ffn());
  const int64_t kept = KeepsGateUp(l.policy) ? 2 * row.ffn() : 0;
  const int64_t down = l.rows * (row.beside_mlp_forward(l.policy) + row.ffn() + kept + row.input());
  return std::max({products, attention, act, down});
}

// A layer's backward at its highest: its tape, what is made again, and the gradients at work, dy included.
int64_t LayerBackwardBytes(const ByteShape& s, const LayerRows& l) {
  const RowBytes row(s);
  const ModelConfig& c = s.config;
  const int64_t d = row.input(), f = row.ffn();
  const int64_t beside = row.beside_mlp_backward(l.policy);
  int64_t mlp = l.rows * (beside + d + 2 * f + d + f + 2 * f);  // norm2, gate up; dy, d(act), d(gate up)
  if (Upcasts(s)) {
    // The weight gradient of gate/up, with upcast operands; gate and up are freed.
    const int64_t upcast = std::min(l.rows, kUpcastRows) * s.accumulate_bytes * (c.hidden_size + 2 * c.ffn_size);
    mlp = std::max(mlp, l.rows * (beside + d + d + 2 * f) + upcast);
  }
  const int64_t results = l.rows * (d + row.q() + row.q() + row.kv());  // dx2, do; dq, dk and dv
  const int64_t ancestor = l.ancestor_rows > 0 ? l.rows * s.accumulate_bytes * c.q_size() : 0;  // its dq
  // One call after the other; scratch holds each row's delta beside its blocks.
  const auto scratch = [&](int64_t block) { return s.threads * s.accumulate_bytes * (2 * block + l.rows); };
  const int64_t ancestor_call = l.ancestor_rows > 0 ? scratch(AncestorBlock(s, l)) : 0;
  const int64_t own_call = scratch(OwnBlock(s, l)) + LongestOf(l) * s.accumulate_bytes * (c.q_size() + 2 * c.kv_size());
  const int64_t attention = l.rows * row.beside_attention_backward(l.policy) + results + ancestor +
                            UpcastBytes(s, l, 3 * c.q_size()) + std::max(ancestor_call, own_call);
  int64_t again = 0;
  if (!KeepsAttention(l.policy))
    again = LayerForwardBytes(s, {l.rows, l.longest_rows, l.ancestor_rows, v1::S0}) + l.rows * d;
  return std::max({mlp, attention, again});
}

// The backward of rows of which only K and V were computed, above their tape.
int64_t KvOnlyBackwardBytes(const ByteShape& s, const LayerRows& l) {
  const RowBytes row(s);
  const int64_t again = row.kv_only_tape(v1::S0) - row.kv_only_tape(l.policy);  // what the policy dropped
  int64_t gradients = l.rows * 2 * row.input();                                 // of norm1 and of x
  if (Upcasts(s)) {
    const int64_t operands = s.config.hidden_size + 2 * s.config.kv_size();
    gradients = std::max(gradients, std::min(l.rows, kUpcastRows) * s.accumulate_bytes * operands);
  }
  return l.rows * (again + row.kv()) + gradients;
}

// One chunk of logits. In bf16 also what is upcast for their product: the chunk's hidden rows (in backward as many rows
// of their gradient) and a slice of the weight.
int64_t HeadChunkBytes(const ByteShape& s, int64_t rows) {
  const int64_t chunk = std::min(rows, s.head_chunk_rows);
  const int64_t upcast =
      Upcasts(s) ? (chunk + std::min(kUpcastVocabulary, s.config.vocab_size)) * s.config.hidden_size : 0;
  return (chunk * s.config.vocab_size + upcast) * s.accumulate_bytes;
}

int64_t BlockRows(const PrefixShape& prefix) {
  return prefix.block_rows > 0 ? std::min(prefix.block_rows, prefix.rows) : prefix.rows;
}

bool OneBlock(const PrefixShape& prefix) { return BlockRows(prefix) == prefix.rows; }

// A block at work behind the rows before it, of which the longest way is the last block's.
LayerRows BlockLayer(const PrefixShape& prefix, v1::TapePolicy policy) {
  const int64_t rows = BlockRows(prefix);
  return {rows, prefix.longest_rows, OneBlock(prefix) ? 0 : prefix.rows - rows, policy};
}

// The tape of `rows` rows, K/V apart.
int64_t TapeBytes(const ByteShape& s, int64_t rows, v1::TapePolicy policy) {
  const RowBytes row(s);
  return rows * ((s.config.num_layers - 1) * row.tape(policy) + row.kv_only_tape(policy));
}

// Of a tape of `bytes`, what is on the device beside the layer at work.
int64_t OnDevice(const PrefixShape& prefix, int64_t bytes) {
  return prefix.offload ? std::min(bytes, prefix.headroom_bytes) : bytes;
}

int64_t KvBytes(const ByteShape& s, const PrefixShape& prefix) {
  return prefix.rows * (s.config.num_layers * RowBytes(s).kv() + kIndexBytes);
}

int64_t GradientKvBytes(const ByteShape& s, const PrefixShape& prefix) {
  return prefix.rows * s.config.num_layers * RowBytes(s).gradient_kv();
}

}  // namespace

double CausalScoreBlocks(int64_t rows) {
  const int64_t step = QueryBlock(rows, /*causal=*/true);
  int64_t blocks = 0;
  for (int64_t first = 0; first < rows; first += step) {
    blocks += (std::min(rows, first + step) + kKeyBlock - 1) / kKeyBlock;
  }
  return static_cast<double>(blocks);
}

double AncestorScoreBlocks(int64_t rows, int64_t keys) {
  const int64_t key_blocks = (keys + kKeyBlock - 1) / kKeyBlock;
  return static_cast<double>(rows) / static_cast<double>(QueryBlock(rows, /*causal=*/false)) *
         static_cast<double>(key_blocks);
}

int64_t HostTapeBytes(const ByteShape& shape, const PrefixShape& prefix) {
  return prefix.offload ? TapeBytes(shape, prefix.rows, prefix.policy) : 0;
}

PhaseBytes PrefixForwardBytes(const ByteShape& shape, const PrefixShape& prefix) {
  const RowBytes row(shape);
  const LayerRows block = BlockLayer(prefix, prefix.policy);
  // The end: all tape is kept, the accumulators are made. Or the last full layer of the last block.
  const int64_t tape = TapeBytes(shape, prefix.rows, prefix.policy);
  const int64_t at_work =
      shape.config.num_layers == 1 ? 0 : block.rows * (row.tape(prefix.policy) + row.kv_only_tape(prefix.policy));
  const PhaseBytes end{.hot_set = KvBytes(shape, prefix) + GradientKvBytes(shape, prefix),
                       .dormant_set = OnDevice(prefix, tape)};
  PhaseBytes layer{.hot_set = KvBytes(shape, prefix), .dormant_set = OnDevice(prefix, tape - at_work)};
  if (OneBlock(prefix)) layer.hot_set -= 2 * prefix.rows * row.kv();  // of this layer (in its working set), of the last
  layer.working_set = LayerForwardBytes(shape, block);
  return layer.peak() > end.peak() ? layer : end;
}

PhaseBytes SuffixBytes(const ByteShape& shape, const PrefixShape& prefix, const WaveShape& wave) {
  const RowBytes row(shape);
  const int64_t layers = shape.config.num_layers, head_rows = wave.rows - wave.kv_only_rows;
  const int64_t full = row.tape(wave.policy) + row.kv();
  const int64_t kv_only = wave.kv_only_rows * (row.kv_only_tape(wave.policy) + row.kv() + row.gradient_kv());
  const int64_t index = wave.rows * (kIndexBytes + (wave.kv_only_rows > 0 ? 8 : 0));
  PhaseBytes bytes{.hot_set = KvBytes(shape, prefix) + GradientKvBytes(shape, prefix),
                   .dormant_set = OnDevice(prefix, TapeBytes(shape, prefix.rows, prefix.policy)),
                   .wave_tape = index + wave.rows * (layers - 1) * full + head_rows * full + kv_only};
  // A trajectory's own rows before the last prompt token are its ancestor in the last layer: one trajectory at a time.
  const int64_t longest = wave.longest_rows > 0 ? wave.longest_rows : wave.rows;
  const int64_t own_ancestor = wave.rows > 0 ? wave.kv_only_rows * longest / wave.rows : 0;
  const LayerRows last{head_rows, longest, std::max(wave.ancestor_rows, own_ancestor), wave.policy};
  const LayerRows below{wave.rows, wave.longest_rows, wave.ancestor_rows, wave.policy};
  // At the head: the last layer's output, its norm, its gradient, one chunk of logits.
  const int64_t head = head_rows * (3 * row.input() + row.statistic()) + HeadChunkBytes(shape, head_rows);
  const int64_t last_layer =
      std::max(LayerForwardBytes(shape, last), LayerBackwardBytes(shape, last)) - head_rows * full;
  // One layer below, all rows are at work, and the last layer's tape is not there yet, or gone.
  const int64_t layer_below = std::max(LayerForwardBytes(shape, below), LayerBackwardBytes(shape, below)) -
                              wave.rows * full - head_rows * full - kv_only;
  bytes.working_set = std::max({head, last_layer, layer_below});
  return bytes;
}

PhaseBytes PrefixBackwardBytes(const ByteShape& shape, const PrefixShape& prefix) {
  const RowBytes row(shape);
  const bool again = !KeepsInputs(prefix.policy);
  const v1::TapePolicy policy = again ? v1::S0 : prefix.policy;
  const LayerRows block = BlockLayer(prefix, policy);
  const int64_t tape = TapeBytes(shape, again ? block.rows : prefix.rows, policy);
  const auto dormant = [&](int64_t at_work) { return again ? tape - at_work : OnDevice(prefix, tape - at_work); };
  const int64_t copies = OneBlock(prefix) ? 0 : block.rows * row.gradient_kv();
  const int64_t last_at_work = block.rows * row.kv_only_tape(policy);
  PhaseBytes last{.hot_set = KvBytes(shape, prefix) + GradientKvBytes(shape, prefix),
                  .dormant_set = dormant(last_at_work),
                  .working_set = last_at_work + KvOnlyBackwardBytes(shape, block) + copies};
  if (shape.config.num_layers == 1) return last;
  // At the second layer from the top: the last layer's tape is gone, of one block its K/V and accumulators too.
  const int64_t at_work = last_at_work + block.rows * row.tape(policy);
  PhaseBytes full{.hot_set = last.hot_set, .dormant_set = dormant(at_work)};
  if (OneBlock(prefix)) full.hot_set -= prefix.rows * (row.kv() + row.gradient_kv());
  full.working_set = LayerBackwardBytes(shape, block) - block.rows * row.kv() + copies;
  return full.peak() > last.peak() ? full : last;
}

int64_t ForwardPrefixBytes(const ByteShape& shape, int64_t rows) { return KvBytes(shape, {.rows = rows}); }

int64_t ForwardWaveBytes(const ByteShape& shape, const WaveShape& wave) {
  const RowBytes row(shape);
  const int64_t head_rows = wave.rows - wave.kv_only_rows;
  const LayerRows layer{wave.rows, wave.longest_rows, wave.ancestor_rows, v1::S0};
  const int64_t head = head_rows * 2 * row.input() + HeadChunkBytes(shape, head_rows);
  return std::max(LayerForwardBytes(shape, layer) + wave.rows * kIndexBytes, head);
}

}  // namespace stemma
