#include "worker/engine/step_sums.h"

namespace stemma::worker {
namespace {

// Counts are whole numbers; the loss keeps its own beside its other sums, as doubles.
uint64_t Count(double tokens) { return static_cast<uint64_t>(tokens); }
uint64_t Count(int64_t number) { return static_cast<uint64_t>(number); }

}  // namespace

internal::v1::StepSums StepSumsOf(const PassSums& sums) {
  internal::v1::StepSums out;
  out.set_policy_loss(sums.loss.pg);
  out.set_kl_loss(sums.loss.kl);
  out.set_entropy_loss(sums.loss.entropy);
  out.set_entropy_nats(sums.loss.plain_entropy);
  out.set_neg_log_ratio_nats(sums.loss.neg_log_ratio);
  out.set_loss_tokens(Count(sums.loss.tokens));
  out.set_clipped_tokens(Count(sums.loss.clipped));
  out.set_clipped_lower_tokens(Count(sums.loss.clipped_lower));
  out.set_computed_rows(Count(sums.tokens_computed));
  out.set_logical_rows(Count(sums.tokens_logical));
  out.set_prefix_forward_s(sums.prefix_forward_s);
  out.set_suffix_s(sums.suffix_s);
  out.set_prefix_backward_s(sums.prefix_backward_s);
  out.set_prefix_forward_bytes(Count(sums.prefix_forward_bytes));
  out.set_suffix_bytes(Count(sums.suffix_bytes));
  out.set_prefix_backward_bytes(Count(sums.prefix_backward_bytes));
  out.set_peak_bytes(Count(sums.peak_bytes()));
  out.set_split_s(sums.split_s);
  out.set_split_bytes(Count(sums.split_bytes));
  out.set_host_bytes(Count(sums.offload.peak_host_bytes));
  out.set_offload_out_bytes(Count(sums.offload.bytes_out));
  out.set_offload_in_bytes(Count(sums.offload.bytes_in));
  out.set_offload_demand_loads(Count(sums.offload.demand_loads));
  out.set_offload_waits(Count(sums.offload.waits));
  return out;
}

void AddExpertLoad(const ExpertLoad& load, int64_t layer_begin, internal::v1::Vote& vote) {
  for (size_t l = 0; l < load.layers().size(); ++l) {
    const ExpertLoad::Layer& layer = load.layers()[l];
    internal::v1::LayerExpertLoad& out = *vote.add_expert_load();
    out.set_layer(static_cast<uint32_t>(layer_begin) + static_cast<uint32_t>(l));
    out.mutable_logical_rows()->Add(layer.logical_rows.begin(), layer.logical_rows.end());
    out.mutable_computed_rows()->Add(layer.computed_rows.begin(), layer.computed_rows.end());
  }
}

}  // namespace stemma::worker
