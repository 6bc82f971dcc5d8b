#include "common/cost/context_parallel_cost.h"

#include <memory>

#include "common/cost/context_rows.h"
#include "common/cost/context_share.h"
#include "common/cost/tape_policy.h"

namespace stemma {
namespace {

int64_t KvElements(const ByteShape& s) { return 2 * s.config.kv_size(); }

// So many gatherings of K/V of every rank's part.
ContextSentBytes Gathers(const ByteShape& s, int64_t part, int64_t count) {
  return {.prefix_kv = count * (s.cp - 1) * part * KvElements(s) * s.run_bytes, .collectives = count};
}

ContextSentBytes Reductions(const ByteShape& s, int64_t part, int64_t count) {
  return {.prefix_gradients = count * (s.cp - 1) * part * KvElements(s) * s.accumulate_bytes, .collectives = count};
}

// Layers in which rows of a prefix attend to earlier ones: all but the model's last.
int64_t AttendingLayers(const ByteShape& s) { return s.full_layers(); }

}  // namespace

ContextSentBytes& ContextSentBytes::operator+=(const ContextSentBytes& other) {
  prefix_kv += other.prefix_kv;
  prefix_gradients += other.prefix_gradients;
  cut_kv += other.cut_kv;
  cut_gradients += other.cut_gradients;
  cut_log_probs += other.cut_log_probs;
  collectives += other.collectives;
  return *this;
}

ContextSentBytes PrefixForwardContextSent(const ByteShape& shape, const PrefixShape& prefix) {
  ContextSentBytes sent;
  if (!SharesRows(shape, prefix)) return sent;
  const std::shared_ptr<const ContextShare> share = ShareOf(shape, prefix);
  for (const ContextBlock& block : share->blocks()) {
    sent += prefix.regather ? Gathers(shape, share->largest().rows, AttendingLayers(shape))
                            : Gathers(shape, block.part, shape.config.num_layers);
  }
  return sent;
}

ContextSentBytes PrefixBackwardContextSent(const ByteShape& shape, const PrefixShape& prefix) {
  ContextSentBytes sent;
  if (!SharesRows(shape, prefix)) return sent;
  const std::shared_ptr<const ContextShare> share = ShareOf(shape, prefix);
  const int64_t all = share->largest().rows, passes = KeepsInputs(prefix.policy) ? 1 : 2;
  for (const ContextBlock& block : share->blocks()) {
    if (prefix.regather) {
      sent += Gathers(shape, all, passes * AttendingLayers(shape));
      sent += Reductions(shape, all, AttendingLayers(shape));
    } else {
      sent += Reductions(shape, block.part, shape.config.num_layers);
    }
  }
  return sent;
}

ContextSentBytes RoundForwardContextSent(const ByteShape& shape, const PrefixShape& prefix) {
  if (!prefix.regather || !SharesRows(shape, prefix)) return {};
  return Gathers(shape, ShareOf(shape, prefix)->largest().rows, shape.config.num_layers);
}

ContextSentBytes RoundBackwardContextSent(const ByteShape& shape, const PrefixShape& prefix) {
  if (!prefix.regather || !SharesRows(shape, prefix)) return {};
  ContextSentBytes sent = RoundForwardContextSent(shape, prefix);
  return sent += Reductions(shape, ShareOf(shape, prefix)->largest().rows, shape.config.num_layers);
}

ContextSentBytes CutForwardContextSent(const ByteShape& shape, int64_t rows) {
  constexpr int64_t kNumberBytes = 2 * 8;  // of a row: its log-prob and its entropy
  const int64_t part = LargestCutPart(rows, shape.cp), layers = shape.config.num_layers;
  ContextSentBytes sent = {.cut_kv = Gathers(shape, part, layers).prefix_kv, .collectives = layers};
  if (!shape.last_stage) return sent;
  sent.cut_log_probs = (shape.cp - 1) * part * kNumberBytes;
  ++sent.collectives;
  return sent;
}

ContextSentBytes CutBackwardContextSent(const ByteShape& shape, int64_t rows) {
  const int64_t part = LargestCutPart(rows, shape.cp), layers = shape.config.num_layers;
  return {.cut_kv = Gathers(shape, part, layers).prefix_kv,
          .cut_gradients = Reductions(shape, part, layers).prefix_gradients,
          .collectives = 2 * layers};
}

}  // namespace stemma
