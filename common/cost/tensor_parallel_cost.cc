#include "common/cost/tensor_parallel_cost.h"

#include <map>

#include "common/base/round_up.h"
#include "common/cost/tape_policy.h"

namespace stemma {
namespace {

// In fp64, of a row of logits: the largest, the log of their sum, the target's; the entropy.
constexpr int64_t kLogitNumberBytes = 8, kRowNumbers = 3, kRowNumbersWithEntropy = 4;

// Collectives of so many rows each: as wide as the model, and of a router's products.
struct RowExchanges {
  int64_t gathers = 0, sums = 0;
  int64_t router_gathers = 0, router_sums = 0;

  RowExchanges operator+(const RowExchanges& o) const {
    return {gathers + o.gathers, sums + o.sums, router_gathers + o.router_gathers, router_sums + o.router_sums};
  }
  RowExchanges operator*(int64_t times) const {
    return {gathers * times, sums * times, router_gathers * times, router_sums * times};
  }
};

constexpr RowExchanges kGather = {.gathers = 1};
constexpr RowExchanges kEmbed = {.sums = 1}, kEmbedBackward = kGather;
constexpr RowExchanges kKvForward = kGather;

// Each block gathers what its norm makes, and sums what it adds to the residual.
RowExchanges LayerForward(const ByteShape& s) {
  return {.gathers = 2, .sums = 2, .router_gathers = s.config.experts ? 1 : 0};
}

// A norm's output that was dropped is gathered again; so is attention's output summed.
RowExchanges LayerBackward(const ByteShape& s, v1::TapePolicy policy) {
  return {.gathers = 2 + (KeepsElementwise(policy) ? 0 : 2),
          .sums = 2 + (KeepsAttention(policy) ? 0 : 1),
          .router_sums = s.config.experts ? 1 : 0};
}

RowExchanges KvBackward(v1::TapePolicy policy) { return {.gathers = KeepsElementwise(policy) ? 0 : 1, .sums = 1}; }

// `row_parts`: rows of one rank, in all exchanges of one kind together.
TensorSentBytes OfParts(const ByteShape& s, int64_t row_parts, const RowExchanges& exchanges) {
  const int64_t number = (s.tp - 1) * row_parts * s.run_bytes;  // one of each row
  const int64_t hidden = number * s.config.hidden_size,
                router = s.config.experts ? number * s.config.experts->count : 0;
  return {.rows = exchanges.gathers * hidden + exchanges.router_gathers * router,
          .row_sums = exchanges.sums * hidden + exchanges.router_sums * router,
          .row_collectives = exchanges.gathers + exchanges.sums + exchanges.router_gathers + exchanges.router_sums};
}

TensorSentBytes Of(const ByteShape& s, int64_t rows, const RowExchanges& exchanges) {
  return OfParts(s, DivideUp(rows, s.tp), exchanges);
}

// Counts all blocks' exchanges, in each of which every context-parallel rank takes part, whatever rows it has there.
TensorSentBytes OfBlocks(const ByteShape& s, const PrefixShape& prefix, int64_t cp_rank,
                         const RowExchanges& exchanges) {
  if (s.tp == 1) return {};
  TensorSentBytes sent = OfParts(s, RowsOfRank(s, prefix, cp_rank).row_parts, exchanges);
  sent.row_collectives *= NumBlocks(prefix);
  return sent;
}

// What only the first one of several stages does; what only the last one does.
RowExchanges IfFirst(const ByteShape& s, const RowExchanges& exchanges) { return exchanges * (s.first_stage ? 1 : 0); }
RowExchanges IfLast(const ByteShape& s, const RowExchanges& exchanges) { return exchanges * (s.last_stage ? 1 : 0); }

RowExchanges PrefixForwardExchanges(const ByteShape& s) {
  return IfFirst(s, kEmbed) + LayerForward(s) * s.full_layers() + IfLast(s, kKvForward);
}

// The ranks add up in a ring: each sends all parts but one, twice.
int64_t AllReduceBytes(int64_t whole_bytes, int64_t ranks) { return 2 * whole_bytes * (ranks - 1) / ranks; }

}  // namespace

TensorSentBytes& TensorSentBytes::operator+=(const TensorSentBytes& other) {
  rows += other.rows;
  row_sums += other.row_sums;
  vocabulary += other.vocabulary;
  row_collectives += other.row_collectives;
  head_collectives += other.head_collectives;
  return *this;
}

TensorSentBytes PrefixForwardTensorSent(const ByteShape& shape, const PrefixShape& prefix, int64_t cp_rank) {
  return OfBlocks(shape, prefix, cp_rank, PrefixForwardExchanges(shape));
}

TensorSentBytes PrefixBackwardTensorSent(const ByteShape& shape, const PrefixShape& prefix, int64_t cp_rank) {
  const bool again = !KeepsInputs(prefix.policy);
  const v1::TapePolicy policy = again ? v1::S0 : prefix.policy;
  const RowExchanges backward = IfLast(shape, KvBackward(policy)) + LayerBackward(shape, policy) * shape.full_layers() +
                                IfFirst(shape, kEmbedBackward);
  return OfBlocks(shape, prefix, cp_rank, again ? PrefixForwardExchanges(shape) + backward : backward);
}

TensorSentBytes WaveForwardTensorSent(const ByteShape& shape, int64_t rows, int64_t kv_only_rows, bool entropy) {
  if (shape.tp == 1) return {};
  TensorSentBytes sent = Of(shape, rows, IfFirst(shape, kEmbed) + LayerForward(shape) * shape.full_layers());
  if (!shape.last_stage) return sent;
  const int64_t head_rows = rows - kv_only_rows;
  if (kv_only_rows > 0) {  // rows are set apart among those of all ranks
    sent += Of(shape, rows, kGather);
    sent += Of(shape, kv_only_rows, kKvForward);
  }
  sent += Of(shape, head_rows, LayerForward(shape) + kGather);  // which the head reads
  sent.vocabulary = (shape.tp - 1) * head_rows * kLogitNumberBytes * (entropy ? kRowNumbersWithEntropy : kRowNumbers);
  sent.head_collectives = DivideUp(head_rows, shape.head_chunk_rows);
  return sent;
}

TensorSentBytes WaveBackwardTensorSent(const ByteShape& shape, int64_t rows, int64_t kv_only_rows,
                                       v1::TapePolicy policy) {
  if (shape.tp == 1) return {};
  TensorSentBytes sent =
      Of(shape, rows, LayerBackward(shape, policy) * shape.full_layers() + IfFirst(shape, kEmbedBackward));
  if (!shape.last_stage) return sent;
  const int64_t head_rows = rows - kv_only_rows;
  constexpr RowExchanges kHead = {.gathers = 0, .sums = 1};
  sent += Of(shape, head_rows, kHead + LayerBackward(shape, policy));
  if (kv_only_rows > 0) {  // and put together again
    sent += Of(shape, kv_only_rows, KvBackward(policy) + kGather);
    sent += Of(shape, head_rows, kGather);
  }
  return sent;
}

PartialGradientBytes PartialGradientsSent(const ModelShard& shard, int64_t accumulate_bytes) {
  PartialGradientBytes sent;
  std::map<int64_t, int64_t> of_layers;  // elements that travel together; what follows the layers is -1's
  for (const LocalTensor& tensor : LocalTensorsOfOneExpert(shard)) {
    const Placement placement = PlacementOf(tensor.spec, shard);
    const int64_t elements = tensor.elements();
    if (placement.partial_over_tp) of_layers[tensor.spec.layer] += elements;
    if (placement.partial_over_first_and_last_stage) sent.stages += elements * accumulate_bytes;
    if (placement.partial_over_kv_replicas) sent.kv += AllReduceBytes(elements * accumulate_bytes, shard.kv_replicas());
  }
  for (const auto& [layer, elements] : of_layers) {
    sent.all += AllReduceBytes(elements * accumulate_bytes, shard.place.tp_size);
  }
  return sent;
}

}  // namespace stemma
