#include "common/cost/context_prefix_bytes.h"

#include <algorithm>

#include "common/cost/cost_layer.h"
#include "common/cost/shared_kv_bytes.h"
#include "common/cost/tape_policy.h"

namespace stemma {
namespace context {
namespace {

// Counts what is beside the layers of a wave where K/V are gathered again: those of all rows, and the next layer's on
// their way; in backward gK/gV of all rows, and those of the layer before on their way. Of the layers below the last
// the one before it counts, which has most tape: in a backward of two layers nothing is left to gather there.
BesideLayer RegatherBeside(const ByteShape& shape, int64_t rows, int64_t part) {
  const KvRows row(shape);
  const int64_t all = rows * row.kv, coming = GatherBytes(shape, part), layers = shape.config.num_layers;
  const int64_t leaving = ReduceBytes(shape, part) + part * row.gradient;
  return {.embedding = coming,
          .forward = all + coming,
          .backward = all + rows * row.gradient + (layers > 2 ? coming : 0) + leaving,
          .forward_last = all,
          .backward_last = all + rows * row.gradient + (layers > 1 ? coming : 0),
          .backward_apart = (layers > 1 ? coming : 0) + leaving,
          .gradients = rows * row.gradient};
}

// The prefixes of a cluster in Phases A and C, on the rank that has most of their rows.
class SharedPrefixes {
 public:
  SharedPrefixes(const ByteShape& shape, const PrefixShape& prefix, bool forward_only = false)
      : s_(shape),
        p_(prefix),
        share_(ShareOf(shape, prefix)),
        layers_(shape.config.num_layers),
        row_(shape),
        part_(share_->largest().rows),
        held_rows_(prefix.regather ? part_ : prefix.rows),
        keeps_blocks_inputs_(!shape.first_stage && !forward_only && !KeepsInputs(prefix.policy)) {}

  const std::vector<ContextBlock>& blocks() const { return share_->blocks(); }

  // See prefix_bytes.cc.
  template <typename F>
  void ForHighestLayers(const F& f) const {
    if (s_.full_layers() < layers_) f(layers_ - 1, /*full=*/false);
    if (s_.full_layers() > 0) f(s_.full_layers() - 1, /*full=*/true);
  }
  int64_t InputBytes(const TensorBytes& t) const { return s_.first_stage ? EmbeddingBytes(t) : t.input; }
  int64_t Outputs(const ContextRows& rows) const { return s_.last_stage ? 0 : RowsOfModel(rows); }
  int64_t KeptInputs(const ContextRows& rows) const { return keeps_blocks_inputs_ ? RowsOfModel(rows) : 0; }

  int64_t Index() const { return part_ * (kIndexBytes + kOwnIndexBytes) + p_.rows * kGatherIndexBytes; }
  int64_t Kv() const { return layers_ * held_rows_ * row_.kv + Index(); }
  int64_t GradientKv() const { return layers_ * held_rows_ * row_.gradient; }

  TensorBytes Tensors(const ContextBlock& block) const { return {s_, block.part}; }

  // Counts the tape of all layers over so many rows.
  int64_t Tape(const ContextRows& rows, v1::TapePolicy policy) const {
    const TensorBytes t(s_, rows.rows, rows.row_parts);
    return s_.full_layers() * t.tape(policy) + (layers_ - s_.full_layers()) * t.kv_only_tape(policy);
  }
  int64_t Tape(v1::TapePolicy policy) const { return Tape(share_->largest(), policy); }

  int64_t AllOutputs() const { return Outputs(share_->largest()); }

  // What stays on the device from Phase A to Phase C.
  PhaseBytes Kept() const {
    const ContextRows& rows = share_->largest();
    return {.hot_set = Kv() + GradientKv(),
            .dormant_set = OnDevice(Tape(p_.policy)) + Outputs(rows) + KeptInputs(rows)};
  }

  // Counts what a tape of so many bytes takes on the device beside the layer at work.
  int64_t OnDevice(int64_t bytes) const { return p_.offload ? std::min(bytes, p_.headroom_bytes) : bytes; }

  // Counts what is there when layer `layer` of a block is at work in Phase A. The first block makes each layer's
  // buffers when it comes to its gathering.
  PhaseBytes Forward(const ContextBlock& block, int64_t layer, int64_t working_set) const {
    const int64_t made = block.begin > 0 ? layers_ : layer;
    const int64_t tape = Tape(block.before, p_.policy) + layer * Tensors(block).tape(p_.policy);
    const int64_t inputs = KeptInputs(block.before) + (keeps_blocks_inputs_ && layer > 0 ? Tensors(block).input : 0);
    return {.hot_set = made * held_rows_ * row_.kv + Index(),
            .dormant_set = OnDevice(tape) + Outputs(block.before) + inputs,
            .working_set = working_set};
  }

  // What that layer adds from its gathering on.
  SharedKv Gather(const ContextBlock& block) const {
    const int64_t made = block.begin > 0 ? 0 : held_rows_ * row_.kv;
    if (p_.regather) return {.held = made + p_.rows * row_.kv, .gathering = GatherBytes(s_, part_)};
    return {.held = made, .gathering = block.part * row_.kv + GatherBytes(s_, block.part)};
  }

  // What the last layer adds, whose rows attend to nothing: where K/V are gathered again, they are not there.
  SharedKv LastGather(const ContextBlock& block) const {
    if (!p_.regather) return Gather(block);
    SharedKv own;
    own.held = block.begin > 0 ? 0 : part_ * row_.kv;
    return own;
  }

  // Counts the same in Phase C. The first block frees K/V and accumulators of the layers above.
  PhaseBytes Backward(const ContextBlock& block, int64_t layer, int64_t working_set) const {
    const int64_t freed = block.begin == 0 ? layers_ - 1 - layer : 0;
    const TensorBytes t = Tensors(block);
    const int64_t dormant = KeepsInputs(p_.policy) ? OnDevice(Tape(block.before, p_.policy) + layer * t.tape(p_.policy))
                                                   : layer * t.tape(v1::S0) + KeptInputs(block.before);
    return {.hot_set = Kv() + GradientKv() - freed * held_rows_ * (row_.kv + row_.gradient),
            .dormant_set = dormant,
            .working_set = Coming(layer - 1) + working_set};
  }

  // Counts the same when Phase C makes a block's tape again.
  PhaseBytes ForwardAgain(const ContextBlock& block, int64_t layer, int64_t working_set) const {
    const TensorBytes t = Tensors(block);
    return {.hot_set = Kv() + GradientKv(),
            .dormant_set = layer * t.tape(v1::S0) + KeptInputs(block.before),
            .working_set = working_set + (s_.last_stage ? 0 : t.input)};
  }

  // What a layer of Phase C holds until each rank has received the sum of what all ranks have for its rows. Where K/V
  // are gathered again, those of all rows are freed before, and gK/gV of all rows when they have been packed.
  SharedKv Reduce(const ContextBlock& block) const {
    SharedKv shared;
    const int64_t part = p_.regather ? part_ : block.part, output = part * row_.gradient;
    shared.reducing = ReduceBytes(s_, part) + output;
    if (p_.regather) {
      shared.gathered = p_.rows * (row_.kv + row_.gradient);
      shared.reducing = std::max(shared.reducing, p_.rows * row_.gradient + ReduceBytes(s_, part) / 2);
    } else {
      shared.reduced = output;
    }
    return shared;
  }

  // The same of the last layer: where K/V are gathered again, the sums are with the rows' owners.
  SharedKv LastReduce(const ContextBlock& block) const { return p_.regather ? SharedKv{} : Reduce(block); }

  // Says where the K/V of own rows are in backward: where K/V are gathered again, they are the hot set's.
  KvOwner Owner() const { return p_.regather ? KvOwner::kPrefix : KvOwner::kShared; }

  // What a layer that runs again needs of all rows.
  int64_t AllRows() const { return p_.regather ? p_.rows * row_.kv : 0; }

 private:
  // Counts a layer's K/V on their way here, of those whose rows attend to others.
  int64_t Coming(int64_t layer) const {
    return p_.regather && layer >= 0 && layer < s_.full_layers() ? GatherBytes(s_, part_) : 0;
  }

  int64_t RowsOfModel(const ContextRows& rows) const { return TensorBytes(s_, rows.rows, rows.row_parts).input; }

  const ByteShape& s_;
  const PrefixShape& p_;
  const std::shared_ptr<const ContextShare> share_;
  const int64_t layers_;
  const KvRows row_;
  const int64_t part_;       // own rows in all blocks
  const int64_t held_rows_;  // whose K/V and gK/gV stay from Phase A to Phase C
  const bool keeps_blocks_inputs_;
};

// The layers at work in Phase A; `policy`: what a layer keeps while it runs.
void RaiseSharedForward(const SharedPrefixes& prefixes, v1::TapePolicy policy, PhaseBytes& highest) {
  for (const ContextBlock& block : prefixes.blocks()) {
    const TensorBytes t = prefixes.Tensors(block);
    highest.RaiseTo(prefixes.Forward(block, 0, prefixes.InputBytes(t)));
    prefixes.ForHighestLayers([&](int64_t layer, bool full) {
      const int64_t bytes = full ? LayerForwardBytes(t, block.runs, policy, prefixes.Gather(block))
                                 : KvOnlyForwardBytes(t, policy, prefixes.LastGather(block));
      highest.RaiseTo(prefixes.Forward(block, layer, bytes));
    });
  }
}

void RaiseForwardAgain(const SharedPrefixes& prefixes, const ContextBlock& block, PhaseBytes& highest) {
  const TensorBytes t = prefixes.Tensors(block);
  highest.RaiseTo(prefixes.ForwardAgain(block, 0, prefixes.InputBytes(t)));
  prefixes.ForHighestLayers([&](int64_t layer, bool full) {
    const int64_t bytes = full ? prefixes.AllRows() + LayerForwardBytes(t, block.runs, v1::S0) : KvOnlyForwardBytes(t);
    highest.RaiseTo(prefixes.ForwardAgain(block, layer, bytes));
  });
}

}  // namespace

int64_t HostTapeBytes(const ByteShape& shape, const PrefixShape& prefix) {
  return SharedPrefixes(shape, prefix).Tape(prefix.policy);
}

PhaseBytes PrefixKeptBytes(const ByteShape& shape, const PrefixShape& prefix) {
  return SharedPrefixes(shape, prefix).Kept();
}

PhaseBytes PrefixForwardBytes(const ByteShape& shape, const PrefixShape& prefix) {
  const SharedPrefixes prefixes(shape, prefix);
  PhaseBytes highest = prefixes.Kept();  // the end: all tape is kept, the accumulators are made
  RaiseSharedForward(prefixes, prefix.policy, highest);
  return highest;
}

PhaseBytes PrefixBackwardBytes(const ByteShape& shape, const PrefixShape& prefix) {
  const SharedPrefixes prefixes(shape, prefix);
  const bool again = !KeepsInputs(prefix.policy);
  const v1::TapePolicy policy = again ? v1::S0 : prefix.policy;
  PhaseBytes highest;
  for (const ContextBlock& block : prefixes.blocks()) {
    const TensorBytes t = prefixes.Tensors(block);
    if (again) RaiseForwardAgain(prefixes, block, highest);
    prefixes.ForHighestLayers([&](int64_t layer, bool full) {
      const SharedKv shared = full ? prefixes.Reduce(block) : prefixes.LastReduce(block);
      const int64_t bytes = full ? LayerBackwardBytes(t, block.runs, policy, prefixes.Owner(), shared)
                                 : KvOnlyBackwardBytes(t, policy, prefixes.Owner(), shared);
      highest.RaiseTo(prefixes.Backward(block, layer, bytes));
    });
  }
  return highest;
}

PhaseBytes ForwardPrefixBytes(const ByteShape& shape, const PrefixShape& prefix) {
  PrefixShape without_tape = prefix;
  without_tape.policy = v1::S5;
  const SharedPrefixes prefixes(shape, without_tape, /*forward_only=*/true);
  PhaseBytes highest{.hot_set = prefixes.Kv(), .dormant_set = prefixes.AllOutputs()};
  RaiseSharedForward(prefixes, v1::S0, highest);
  return highest;
}

int64_t ForwardKeptBytes(const ByteShape& shape, const PrefixShape& prefix) {
  return SharedPrefixes(shape, prefix).Kv();
}

}  // namespace context

BesideLayer RegatherBytes(const ByteShape& shape, const PrefixShape& prefix) {
  if (!prefix.regather || !SharesRows(shape, prefix)) return {};
  return context::RegatherBeside(shape, prefix.rows, ShareOf(shape, prefix)->largest().rows);
}

}  // namespace stemma
