// Models, requests and memory settings, drawn, whose bytes are predicted and measured: of one rank, and of ranks of a
// copy. Used by random_bytes_test.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "common/model/model_config.h"
#include "stemma/v1/run_config.pb.h"
#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"

namespace stemma::testing {

struct Case {
  ModelConfig model;
  v1::RunConfig run;
  std::vector<int64_t> prompts, responses;
  double budget_of_ample = 0;  // of what the plan without a limit needs; 0: no limit
  bool lazy_copies = false;    // copies end only where they are waited for
  bool first_experts = false;  // all rows choose the experts of the first rank, which plays then

  std::string ExpertsText() const {
    if (!model.experts) return "";
    std::ostringstream out;
    out << " X " << model.experts->count << " U " << model.experts->per_token
        << (model.experts->weights_sum_to_one ? "" : " raw") << (first_experts ? " the first" : "");
    return out.str();
  }
  std::string text() const {
    std::ostringstream out;
    out << model.model_type << (model.tie_word_embeddings ? " tied" : "") << " D " << model.hidden_size << " L "
        << model.num_layers << " H " << model.num_heads << " K " << model.num_kv_heads << " E " << model.head_size
        << " F " << model.ffn_size << ExpertsText() << " V " << model.vocab_size << " budget of ample "
        << budget_of_ample << (lazy_copies ? " lazy copies" : "") << " prompts";
    for (const int64_t prompt : prompts) out << " " << prompt;
    out << " responses";
    for (const int64_t response : responses) out << " " << response;
    out << "\n" << run.ShortDebugString();
    return out.str();
  }
};

inline ModelConfig DrawModel(Draw& draw) {
  const int64_t kv_heads = draw.Of<int64_t>({1, 2, 4});
  ModelConfig model = SyntheticModel({.hidden = 8 * draw.Between(4, 24),
                                      .layers = draw.Between(1, 5),
                                      .heads = kv_heads * draw.Of<int64_t>({1, 2, 3}),
                                      .kv_heads = kv_heads,
                                      .head_size = draw.Of<int64_t>({16, 32, 64}),
                                      .ffn = 8 * draw.Between(4, 60),
                                      .vocab = draw.LogBetween(60, 12000)});
  model.SetFamily(draw.Of<Family>({Families().begin(), Families().end()}));
  if (model.experts) {
    const int64_t count = draw.LogBetween(1, 150);
    model.experts = Experts{count, draw.Between(1, std::min<int64_t>(count, 5)), draw.Chance(50)};
    model.ffn_size = 8 * draw.Between(1, count > 12 ? 4 : 24);
  }
  if (model.num_heads > 4) model.head_size = 16;
  if (!model.qk_norm) model.hidden_size = model.num_heads * model.head_size;
  model.tie_word_embeddings = draw.Chance(50);
  return model;
}

inline Case DrawCase(Draw& draw) {
  Case c;
  c.model = DrawModel(draw);
  c.run.set_dtype(draw.Of<std::string>({"fp32", "bf16", "bf16", "fp64"}));
  c.run.set_threads(static_cast<uint32_t>(draw.Between(1, 2)));
  c.run.set_schedule(draw.Of<v1::Schedule>({v1::AUTO, v1::REUSE, v1::REUSE, v1::DENSE}));
  c.run.set_head_chunk_tokens(static_cast<uint32_t>(draw.LogBetween(16, 512)));
  c.run.set_wave_suffixes(static_cast<uint32_t>(draw.Chance(50) ? 0 : draw.Between(1, 4)));
  if (draw.Chance(60))
    c.run.set_prefix_policy(draw.Of<v1::TapePolicy>({v1::S0, v1::S1, v1::S2, v1::S3, v1::S4, v1::S5}));
  if (draw.Chance(60)) c.run.set_suffix_policy(draw.Of<v1::TapePolicy>({v1::S0, v1::S1, v1::S2, v1::S3, v1::S4}));
  if (draw.Chance(30)) c.run.set_prefix_block_rows(static_cast<uint32_t>(draw.LogBetween(32, 400)));
  if (draw.Chance(60) && c.run.prefix_policy() != v1::S5) {
    c.run.set_offload(draw.Of<v1::Offload>({v1::OFFLOAD_ON, v1::OFFLOAD_ON, v1::OFFLOAD_OFF}));
  }
  c.run.set_host_memory_bytes(uint64_t{512} << 20);
  c.run.set_optimizer_residency(draw.Of<v1::OptimizerResidency>({v1::DEVICE, v1::HOST}));
  for (int64_t i = draw.Between(1, 3); i > 0; --i) c.prompts.push_back(draw.LogBetween(1, 900));
  for (int64_t i = draw.Between(1, 4); i > 0; --i) c.responses.push_back(draw.LogBetween(1, 250));
  if (draw.Chance(60)) c.budget_of_ample = static_cast<double>(draw.Between(20, 160)) / 100;
  c.lazy_copies = draw.Chance(50);
  if (c.run.wave_suffixes() <= 1 && draw.Chance(10)) {
    c.run.set_layout(v1::ONE_BY_ONE);
  } else if (draw.Chance(50)) {
    c.run.set_layout(v1::PADDED);
  }
  return c;
}

// Makes the case one of a tensor-parallel rank: sizes that ranks can share, K/V heads that several of them hold.
inline Case DrawRankCase(Draw& draw) {
  Case c = DrawCase(draw);
  const int64_t tp = draw.Between(2, 4);
  c.run.mutable_mesh()->set_tp(static_cast<uint32_t>(tp));
  ModelConfig& m = c.model;
  m.num_kv_heads = tp == 4 ? draw.Of<int64_t>({1, 2, 4, 8}) : draw.Of<int64_t>({1, tp, 2 * tp});
  m.num_heads = std::lcm(m.num_kv_heads, tp) * draw.Of<int64_t>({1, 2});
  m.ffn_size = tp * 8 * draw.Between(2, 24);
  if (m.num_heads > 4) m.head_size = 16;
  if (!m.qk_norm) m.hidden_size = m.num_heads * m.head_size;
  return c;
}

// Makes the case one of a tensor-parallel rank with experts of its own.
inline Case DrawExpertRankCase(Draw& draw) {
  Case c = DrawRankCase(draw);
  const int64_t tp = c.run.mesh().tp(), ep = tp == 4 ? draw.Of<int64_t>({2, 4}) : tp;
  c.run.mutable_mesh()->set_ep(static_cast<uint32_t>(ep));
  // Few of which a row passes most, so that all that comes is kept; or any number.
  const bool few = draw.Chance(50);
  const int64_t count = ep * (few ? draw.Between(1, 2) : draw.LogBetween(1, 30));
  const int64_t per_token = few ? draw.Between(count - count / 3, count) : draw.Between(1, std::min<int64_t>(count, 6));
  c.model.experts = Experts{count, per_token, draw.Chance(50)};
  c.model.SetFamily(*FindFamily("qwen3_moe"));
  c.model.ffn_size = tp * 8 * draw.Between(1, count > 12 ? 2 : 12);
  c.model.vocab_size += (tp - c.model.vocab_size % tp) % tp;  // each has as many tokens
  c.first_experts = draw.Chance(70);
  return c;
}

// Makes the case one of a context-parallel rank, which may be a tensor-parallel one, too.
inline Case DrawContextCase(Draw& draw) {
  Case c = draw.Chance(30) ? DrawRankCase(draw) : DrawCase(draw);
  c.run.mutable_mesh()->set_cp(static_cast<uint32_t>(draw.Between(2, 4)));
  if (c.model.vocab_size % 2 == 0) c.run.set_shard_parameters(v1::SHARD_PARAMETERS_ON);
  if (c.model.vocab_size % 4 == 0) c.run.set_reduce_gradients(v1::REDUCE_GRADIENTS_SWEEP);
  c.run.set_prefix_kv(draw.Of<v1::PrefixKv>({v1::PREFIX_KV_AUTO, v1::PREFIX_KV_HOLD, v1::PREFIX_KV_REGATHER}));
  return c;
}

// Makes the case one whose budget has room for a part of its longest rollouts only.
inline Case DrawCutCase(Draw& draw) {
  Case c = DrawContextCase(draw);
  c.run.set_schedule(v1::REUSE);
  c.prompts = {draw.LogBetween(1, 300)};
  c.responses.clear();
  for (int64_t i = draw.Between(1, 3); i > 0; --i) c.responses.push_back(draw.LogBetween(100, 1200));
  c.budget_of_ample = static_cast<double>(draw.Between(25, 80)) / 100;
  return c;
}

}  // namespace stemma::testing
