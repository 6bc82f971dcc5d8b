#include "common/cost.h"

#include <algorithm>

namespace stemma {
namespace {

double LayerParameters(const ModelConfig& c) {
  return static_cast<double>(c.hidden_size) * static_cast<double>(c.q_size() + 2 * c.kv_size()) +
         static_cast<double>(c.q_size()) * static_cast<double>(c.hidden_size) +
         3.0 * static_cast<double>(c.hidden_size) * static_cast<double>(c.ffn_size);
}

double KvParameters(const ModelConfig& c) {
  return 2.0 * static_cast<double>(c.hidden_size) * static_cast<double>(c.kv_size());
}

Flops LinearFlops(double parameters, double rows) { return {2 * parameters * rows, 4 * parameters * rows}; }

Flops AttentionFlops(const ModelConfig& c, double pairs) {
  return {4.0 * static_cast<double>(c.q_size()) * pairs, 8.0 * static_cast<double>(c.q_size()) * pairs};
}

Flops operator*(double factor, Flops f) { return {factor * f.forward, factor * f.backward}; }
Flops operator+(Flops a, const Flops& b) { return a += b; }

}  // namespace

Flops& Flops::operator+=(const Flops& other) {
  forward += other.forward;
  backward += other.backward;
  return *this;
}

Flops PrefixFlops(const ModelConfig& config, int64_t rows) {
  const double r = static_cast<double>(rows);
  const double layers = static_cast<double>(config.num_layers);
  const Flops full = LinearFlops(LayerParameters(config), r) + AttentionFlops(config, r * (r + 1) / 2);
  return (layers - 1) * full + LinearFlops(KvParameters(config), r);
}

Flops SuffixFlops(const ModelConfig& config, int64_t prefix_rows, int64_t rows) {
  const double r = static_cast<double>(rows);
  const double pairs = r * static_cast<double>(prefix_rows) + r * (r + 1) / 2;
  const Flops layer = LinearFlops(LayerParameters(config), r) + AttentionFlops(config, pairs);
  const double head = static_cast<double>(config.hidden_size) * static_cast<double>(config.vocab_size);
  return static_cast<double>(config.num_layers) * layer + LinearFlops(head, r);
}

Flops DenseFlops(const ModelConfig& config, int64_t prefix_rows, int64_t rows) {
  // Causal pairs of the whole are those of the prefix, of the suffix, and suffix × prefix: nothing else is shared.
  return PrefixFlops(config, prefix_rows) + SuffixFlops(config, prefix_rows, rows);
}

namespace {

// Bytes per row of what a layer's backward reads (worker/model/layer.h, LayerTape), by tensor.
struct RowBytes {
  explicit RowBytes(const ByteShape& s) : e(s.run_bytes), a(s.accumulate_bytes), c(s.config) {}

  int64_t input() const { return e * c.hidden_size; }
  int64_t qkv() const { return e * (c.q_size() + 2 * c.kv_size()); }
  int64_t qk_norm() const { return c.qk_norm ? qkv() + a * (c.num_heads + c.num_kv_heads) : 0; }
  int64_t attention() const { return e * (2 * c.q_size() + 2 * c.kv_size()) + a * c.num_heads; }
  int64_t mlp() const { return e * 3 * c.ffn_size; }
  // x, norm1 and its statistic, q k v o lse, x2, norm2, gate up act.
  int64_t tape() const { return 4 * input() + 2 * a + qk_norm() + attention() + mlp(); }
  int64_t kv_tape() const {
    const int64_t kept = c.qk_norm ? e * 2 * c.kv_size() + a * c.num_kv_heads : 0;
    return 2 * input() + a + kept + e * 2 * c.kv_size();
  }
  int64_t gradient_kv() const { return a * 2 * c.kv_size(); }
  int64_t e, a;
  const ModelConfig& c;
};

constexpr int64_t kUpcastRows = 512;  // rows of bf16 operands that worker/ops/linear.cc upcasts at a time

// worker/kernels/attention.cc, backward: two blocks of 128 x 512 scores for each thread.
constexpr int64_t kAttentionScratch = 2 * 128 * 512;

// Above a layer's tape while the backward of its MLP runs: dy, d(act), d(gate up); act is freed.
int64_t MlpBackwardBytes(const ByteShape& s, int64_t rows) {
  const int64_t d = s.config.hidden_size, f = s.config.ffn_size;
  const int64_t swiglu = rows * s.run_bytes * (d + 2 * f);
  if (s.run_bytes == s.accumulate_bytes) return swiglu;
  // bf16: the weight gradient of gate/up, with upcast operands; gate and up are freed too.
  const int64_t upcast = std::min(rows, kUpcastRows) * s.accumulate_bytes * (d + 2 * f);
  return std::max(swiglu, rows * s.run_bytes * (d - f) + upcast);
}

// Above a layer's tape while the backward of its attention runs over `ancestor_rows`; what the MLP kept is freed.
int64_t AttentionBackwardBytes(const ByteShape& s, int64_t rows, int64_t ancestor_rows) {
  const int64_t d = s.config.hidden_size, q = s.config.q_size(), kv = s.config.kv_size();
  const int64_t freed = rows * (s.run_bytes * (3 * s.config.ffn_size + 2 * d) + s.accumulate_bytes);
  const int64_t results = rows * s.run_bytes * (d + q + q + 2 * kv);  // dx2, do; dq, dk, dv
  const int64_t ancestor_dq = ancestor_rows > 0 ? rows * s.accumulate_bytes * q : 0;
  const int64_t ancestor_gradients = ancestor_rows * s.accumulate_bytes * 2 * kv;
  const int64_t scratch = s.threads * s.accumulate_bytes * (kAttentionScratch + rows);  // and a row's delta
  // bf16 is computed in fp32: q, k, v, o, do and the ancestor's k, v.
  const int64_t upcast =
      s.run_bytes == s.accumulate_bytes ? 0 : s.accumulate_bytes * (rows * (3 * q + 2 * kv) + ancestor_rows * 2 * kv);
  return results + ancestor_dq + ancestor_gradients + scratch + upcast - freed;
}

int64_t LayerBackwardBytes(const ByteShape& s, int64_t rows, int64_t ancestor_rows) {
  return std::max(MlpBackwardBytes(s, rows), AttentionBackwardBytes(s, rows, ancestor_rows));
}

constexpr int64_t kIndexBytes = 16;  // token and position of a row

int64_t HeadChunkBytes(const ByteShape& s, int64_t rows) {
  const int64_t chunk = rows < s.head_chunk_rows ? rows : s.head_chunk_rows;
  return chunk * s.config.vocab_size * s.accumulate_bytes;
}

}  // namespace

int64_t PrefixBytes(const ByteShape& shape, int64_t rows) {
  const RowBytes row(shape);
  const int64_t layers = shape.config.num_layers;
  return rows * ((layers - 1) * row.tape() + row.kv_tape() + layers * row.gradient_kv() + kIndexBytes);
}

int64_t PrefixBackwardBytes(const ByteShape& shape, int64_t rows) {
  // At the second layer from the top: the last layer's tape and accumulators are gone.
  const RowBytes row(shape);
  return std::max<int64_t>(0, LayerBackwardBytes(shape, rows, 0) - rows * (row.kv_tape() + row.gradient_kv()));
}

int64_t WaveBytes(const ByteShape& shape, const WaveShape& wave) {
  const RowBytes row(shape);
  const int64_t head_rows = wave.rows - wave.kv_only_rows;
  int64_t tape = wave.rows * ((shape.config.num_layers - 1) * row.tape() + kIndexBytes) + head_rows * row.tape();
  if (wave.kv_only_rows > 0) tape += wave.kv_only_rows * (row.kv_tape() + row.gradient_kv()) + wave.rows * 8;
  // At the head: the last layer's output, its norm, its gradient, one chunk of logits.
  const int64_t head = head_rows * (3 * row.input() + row.a) + HeadChunkBytes(shape, head_rows);
  const int64_t backward_last = LayerBackwardBytes(shape, head_rows, wave.ancestor_rows + wave.kv_only_rows);
  // One layer below, all rows are at work, and the last layer's tape is gone.
  const int64_t backward_below = LayerBackwardBytes(shape, wave.rows, wave.ancestor_rows) - head_rows * row.tape() -
                                 (wave.kv_only_rows > 0 ? wave.kv_only_rows * (row.kv_tape() + row.gradient_kv()) : 0);
  return tape + std::max({head, backward_last, backward_below});
}

int64_t ForwardPrefixBytes(const ByteShape& shape, int64_t rows) {
  const RowBytes row(shape);
  return rows * (shape.config.num_layers * shape.run_bytes * 2 * shape.config.kv_size() + kIndexBytes);
}

int64_t ForwardWaveBytes(const ByteShape& shape, const WaveShape& wave) {
  const RowBytes row(shape);
  const int64_t head_rows = wave.rows - wave.kv_only_rows;
  const int64_t layer = wave.rows * (row.tape() + row.input() + kIndexBytes);
  const int64_t head = head_rows * 2 * row.input() + HeadChunkBytes(shape, head_rows);
  return std::max(layer, head);
}

}  // namespace stemma
