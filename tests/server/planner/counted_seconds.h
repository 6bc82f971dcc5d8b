// The seconds of a plan's clusters, counted product by product as a worker computes them, for tests of the closed forms
// of server/planner/cost_model.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "server/planner/cost_model.h"
#include "server/planner/planner.h"
#include "stemma/v1/plan.pb.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

// What a phase takes, product by product.
class Clock {
 public:
  Clock(const ModelConfig& config, const Rates& rates, int64_t tile) : c_(config), rates_(rates), tile_(tile) {}

  double seconds() const { return seconds_; }

  void ProductForward(int64_t rows, double weights, Rate rate = server::kLinear) {
    RecomputedProduct(rows, weights, rate);
    seconds_ += weights * rates_[server::kWave];
  }
  // Count the same of each MLP that a row passes; the weights of all MLPs are read.
  void MlpsForward(int64_t rows, double weights) {
    RecomputedProduct(rows, used() * weights);
    seconds_ += mlps() * weights * rates_[server::kWave];
  }
  void MlpsBackward(int64_t rows, double weights) {
    for (int i = 0; i < 2; ++i) RecomputedProduct(rows, used() * weights);
    seconds_ += mlps() * weights * rates_[server::kWaveBackward];
  }
  // Counts the gradients of the operand and of the weight.
  void ProductBackward(int64_t rows, double weights, Rate rate = server::kLinear) {
    for (int i = 0; i < 2; ++i) RecomputedProduct(rows, weights, rate);
    seconds_ += weights * rates_[server::kWaveBackward];
  }
  void RecomputedProduct(int64_t rows, double weights, Rate rate = server::kLinear) {
    const int64_t tiles = (rows + tile_ - 1) / tile_;
    seconds_ += 2 * static_cast<double>(tiles * tile_) * weights * rates_[rate];
  }
  void Elements(int64_t rows, double elements) {
    seconds_ += static_cast<double>(rows) * elements * rates_[server::kElement];
  }
  void Merge(int64_t rows) { seconds_ += static_cast<double>(rows * c_.q_size()) * rates_[server::kMerge]; }

  // Count rows that attend to so many earlier ones, and causally to themselves.
  void AttentionForward(int64_t rows, int64_t earlier) {
    seconds_ += 4 * Pairs(rows, earlier) * rates_[server::kAttentionForward];
  }
  void AttentionBackward(int64_t rows, int64_t earlier) {
    seconds_ += 8 * Pairs(rows, earlier) * rates_[server::kAttentionBackward];
  }

  double hidden() const { return static_cast<double>(c_.hidden_size); }
  double qkv() const { return hidden() * static_cast<double>(c_.q_size() + 2 * c_.kv_size()); }
  double kv() const { return hidden() * static_cast<double>(2 * c_.kv_size()); }
  double output() const { return hidden() * static_cast<double>(c_.q_size()); }
  double gate_up() const { return 2 * down(); }
  double down() const { return hidden() * static_cast<double>(c_.ffn_size); }
  double head() const { return hidden() * static_cast<double>(c_.vocab_size); }
  double norm_elements() const { return 2 * hidden(); }
  double query_elements() const { return static_cast<double>(2 * c_.q_size()); }
  double swiglu_elements() const { return used() * static_cast<double>(3 * c_.ffn_size); }
  double mlps() const { return c_.experts ? static_cast<double>(c_.experts->count) : 1; }
  double used() const { return c_.experts ? static_cast<double>(c_.experts->per_token) : 1; }
  double router() const { return c_.experts ? hidden() * mlps() : 0; }
  // Counts rows that are copied for their experts, activations that are weighted, and outputs that are added up.
  double routed_elements() const { return c_.experts ? used() * (2 * hidden() + static_cast<double>(c_.ffn_size)) : 0; }
  double layer_elements() const {
    return 2 * norm_elements() + query_elements() + swiglu_elements() + routed_elements();
  }

  void LayerForward(int64_t rows) {
    for (const double weights : {qkv(), output(), router()}) ProductForward(rows, weights);
    for (const double weights : {gate_up(), down()}) MlpsForward(rows, weights);
    Elements(rows, layer_elements());
  }
  // Counts also what the policy makes again, but for attention.
  void LayerBackward(int64_t rows, v1::TapePolicy policy) {
    for (const double weights : {qkv(), output(), router()}) ProductBackward(rows, weights);
    for (const double weights : {gate_up(), down()}) MlpsBackward(rows, weights);
    Elements(rows, 2 * layer_elements());
    if (policy >= v1::S1) Elements(rows, 2 * norm_elements() + swiglu_elements() + routed_elements());
    if (policy >= v1::S2) RecomputedProduct(rows, used() * gate_up());
    if (policy >= v1::S3) RecomputedProduct(rows, qkv());
    if (policy >= v1::S3) Elements(rows, query_elements());
    if (policy >= v1::S4) RecomputedProduct(rows, output());
  }

 private:
  double Pairs(int64_t rows, int64_t earlier) const {
    const auto r = static_cast<double>(rows);
    return static_cast<double>(c_.q_size()) * (r * static_cast<double>(earlier) + r * (r + 1) / 2);
  }

  const ModelConfig& c_;
  const Rates& rates_;
  const int64_t tile_;
  double seconds_ = 0;
};

// The seconds of one cluster of a plan, counted.
class ClusterCount {
 public:
  ClusterCount(const PlannerModel& model, const PlannerRequest& request, const v1::Cluster& cluster)
      : model_(model), request_(request), cluster_(cluster) {}

  double PrefixForward(const Rates& rates, int64_t tile) const {
    Clock clock(model_.config, rates, tile);
    for (const int64_t rows : Blocks()) {
      for (int64_t l = 0; l < full_layers(); ++l) clock.LayerForward(rows);
      clock.ProductForward(rows, clock.kv());
    }
    for (int64_t l = 0; l < full_layers(); ++l) {
      for (const uint32_t group : cluster_.prefix_groups()) clock.AttentionForward(PrefixRows(group), 0);
      clock.Merge(MergedRows());
    }
    return clock.seconds();
  }

  double PrefixBackward(const Rates& rates, int64_t tile) const {
    const v1::TapePolicy policy = cluster_.prefix_policy();
    const bool again = policy == v1::S5;
    Clock clock(model_.config, rates, tile);
    for (const int64_t rows : Blocks()) {
      for (int64_t l = 0; l < full_layers(); ++l) {
        if (again) clock.LayerForward(rows);
        clock.LayerBackward(rows, again ? v1::S0 : policy);
      }
      if (again) clock.ProductForward(rows, clock.kv());
      clock.ProductBackward(rows, clock.kv());
      if (!again && RestoresKv(policy)) clock.RecomputedProduct(rows, clock.kv());
    }
    for (int64_t l = 0; l < full_layers(); ++l) {
      for (const uint32_t group : cluster_.prefix_groups()) {
        clock.AttentionBackward(PrefixRows(group), 0);
        if (policy >= v1::S4) clock.AttentionForward(PrefixRows(group), 0);
      }
      clock.Merge(MergedRows());
    }
    return clock.seconds();
  }

  double Waves(const Rates& rates, int64_t tile) const {
    Clock clock(model_.config, rates, tile);
    for (const v1::Wave& wave : cluster_.waves()) AddWave(wave, clock);
    return clock.seconds();
  }

  bool RestoresPrefixKv() const {
    return cluster_.prefix_policy() < v1::S5 && RestoresKv(cluster_.prefix_policy()) &&
           !cluster_.prefix_groups().empty();
  }
  bool HeadRunsTwice() const {
    return std::any_of(cluster_.waves().begin(), cluster_.waves().end(), [this](const v1::Wave& wave) {
      const std::vector<HeadChunk> chunks = HeadChunks(wave);
      return std::any_of(chunks.begin(), chunks.end(), [](const HeadChunk& chunk) { return chunk.twice; });
    });
  }

 private:
  int64_t full_layers() const { return model_.config.num_layers - 1; }
  // Whether the last layer's K before QK-norm is computed again.
  bool RestoresKv(v1::TapePolicy policy) const { return model_.config.qk_norm && policy >= v1::S3; }
  int64_t PrefixRows(uint32_t group) const { return request_.groups[group].prompt_tokens - 1; }
  bool IsDense(uint32_t group) const {
    const auto& reused = cluster_.prefix_groups();
    return std::find(reused.begin(), reused.end(), group) == reused.end();
  }

  int64_t AllPrefixRows() const {
    int64_t rows = 0;
    for (const uint32_t group : cluster_.prefix_groups()) rows += PrefixRows(group);
    return rows;
  }
  std::vector<int64_t> Blocks() const {
    const int64_t block = cluster_.prefix_block_rows();
    std::vector<int64_t> blocks;
    for (int64_t left = AllPrefixRows(); left > 0;) {
      blocks.push_back(block == 0 ? left : std::min(block, left));
      left -= blocks.back();
    }
    return blocks;
  }
  int64_t MergedRows() const {
    const int64_t block = cluster_.prefix_block_rows();
    return block == 0 ? 0 : std::max<int64_t>(AllPrefixRows() - block, 0);
  }

  void AddWave(const v1::Wave& wave, Clock& clock) const {
    int64_t rows = 0, kv_only = 0;
    const v1::TapePolicy policy = cluster_.suffix_policy();
    for (const v1::WaveMember& member : wave.members()) {
      const int64_t own = request_.groups[member.group()].rollouts[member.rollout()].response_tokens;
      const int64_t prefix = PrefixRows(member.group());
      rows += own;
      AddAttention(own, prefix, IsDense(member.group()), policy, clock);
      kv_only += IsDense(member.group()) ? prefix : 0;
    }
    for (int64_t l = 0; l < full_layers(); ++l) {
      clock.LayerForward(rows + kv_only);
      clock.LayerBackward(rows + kv_only, policy);
    }
    clock.LayerForward(rows);
    clock.LayerBackward(rows, policy);
    if (kv_only > 0) {
      clock.ProductForward(kv_only, clock.kv());
      clock.ProductBackward(kv_only, clock.kv());
      if (RestoresKv(policy)) clock.RecomputedProduct(kv_only, clock.kv());
    }
    for (const HeadChunk& chunk : HeadChunks(wave)) {
      clock.ProductForward(chunk.rows, clock.head(), server::kHead);
      if (chunk.twice) clock.ProductForward(chunk.rows, clock.head(), server::kHead);
      clock.ProductBackward(chunk.rows, clock.head(), server::kHead);
    }
  }

  // One product of the head, which runs forward twice where the loss must have seen later chunks of its response first.
  struct HeadChunk {
    int64_t rows;
    bool twice;
  };
  // The rows of a wave in the head's chunks; where whole responses are wanted, those that fit one chunk together are
  // one, and each longer one is cut by itself.
  std::vector<HeadChunk> HeadChunks(const v1::Wave& wave) const {
    const int64_t most = model_.run.head_chunk_tokens();
    std::vector<std::vector<int64_t>> taken = {{}};  // responses that are cut into chunks together
    for (const v1::WaveMember& member : wave.members()) {
      const int64_t rows = request_.groups[member.group()].rollouts[member.rollout()].response_tokens;
      const int64_t before = std::accumulate(taken.back().begin(), taken.back().end(), int64_t{0});
      if (request_.whole_rollouts && before > 0 && before + rows > most) taken.emplace_back();
      taken.back().push_back(rows);
    }
    std::vector<HeadChunk> chunks;
    for (const std::vector<int64_t>& responses : taken) {
      const int64_t rows = std::accumulate(responses.begin(), responses.end(), int64_t{0});
      for (int64_t begin = 0; begin < rows; begin += most) {
        chunks.push_back({std::min(most, rows - begin), request_.whole_rollouts && begin + most < rows});
      }
    }
    return chunks;
  }

  void AddAttention(int64_t rows, int64_t prefix, bool dense, v1::TapePolicy policy, Clock& clock) const {
    for (int64_t l = 0; l < model_.config.num_layers; ++l) {
      const bool whole = dense && l < full_layers();
      const int64_t own = whole ? prefix + rows : rows, earlier = whole ? 0 : prefix;
      clock.AttentionForward(own, earlier);
      clock.AttentionBackward(own, earlier);
      if (policy >= v1::S4) clock.AttentionForward(own, earlier);
      if (!dense && prefix > 0) clock.Merge(rows);
    }
  }

  const PlannerModel& model_;
  const PlannerRequest& request_;
  const v1::Cluster& cluster_;
};

}  // namespace stemma::testing
