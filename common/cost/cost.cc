#include "common/cost/cost.h"

#include <algorithm>

#include "common/cost/tape_policy.h"

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

// Forward products that the backward of one full layer makes again.
double RecomputedParameters(const ModelConfig& c, v1::TapePolicy policy) {
  const auto d = static_cast<double>(c.hidden_size), q = static_cast<double>(c.q_size());
  double parameters = 0;
  if (!KeepsGateUp(policy)) parameters += 2 * d * static_cast<double>(c.ffn_size);
  if (!KeepsQueries(policy)) parameters += d * (q + 2 * static_cast<double>(c.kv_size()));
  if (!KeepsAttention(policy)) parameters += q * d;
  return parameters;
}

Flops LayerRecomputeFlops(const ModelConfig& config, double rows, double pairs, v1::TapePolicy policy) {
  Flops flops;
  flops.backward = LinearFlops(RecomputedParameters(config, policy), rows).forward;
  if (!KeepsAttention(policy)) flops.backward += AttentionFlops(config, pairs).forward;
  return flops;
}

}  // namespace

Flops PrefixRecomputeFlops(const ModelConfig& config, const PrefixShape& prefix) {
  if (!KeepsInputs(prefix.policy)) return {0, PrefixFlops(config, prefix.rows).forward};
  const auto r = static_cast<double>(prefix.rows);
  return static_cast<double>(config.num_layers - 1) * LayerRecomputeFlops(config, r, r * (r + 1) / 2, prefix.policy);
}

Flops SuffixRecomputeFlops(const ModelConfig& config, int64_t prefix_rows, int64_t rows, v1::TapePolicy policy) {
  const auto r = static_cast<double>(rows);
  const double pairs = r * static_cast<double>(prefix_rows) + r * (r + 1) / 2;
  return static_cast<double>(config.num_layers) * LayerRecomputeFlops(config, r, pairs, policy);
}

}  // namespace stemma
