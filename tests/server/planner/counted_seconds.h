// The seconds of a plan's clusters, counted product by product as a worker computes them, for tests of the closed forms
// of server/planner/cost_model.h.
#pragma once

#include <algorithm>
#include <cstdint>
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
  double swiglu_elements() const { return static_cast<double>(3 * c_.ffn_size); }

  void LayerForward(int64_t rows) {
    for (const double weights : {qkv(), output(), gate_up(), down()}) ProductForward(rows, weights);
    Elements(rows, 2 * norm_elements() + query_elements() + swiglu_elements());
  }
  // Counts also what the policy makes again, but for attention.
  void LayerBackward(int64_t rows, v1::TapePolicy policy) {
    for (const double weights : {qkv(), output(), gate_up(), down()}) ProductBackward(rows, weights);
    Elements(rows, 2 * (2 * norm_elements() + query_elements() + swiglu_elements()));
    if (policy >= v1::S1) Elements(rows, 2 * norm_elements() + swiglu_elements());
    if (policy >= v1::S2) RecomputedProduct(rows, gate_up());
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

 private:
  int64_t full_layers() const { return model_.config.num_layers - 1; }
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
    }
    const int64_t chunk = model_.run.head_chunk_tokens();
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      clock.ProductForward(std::min(chunk, rows - begin), clock.head(), server::kHead);
      clock.ProductBackward(std::min(chunk, rows - begin), clock.head(), server::kHead);
    }
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
