#include "common/cost/prefix_bytes.h"

#include <algorithm>
#include <memory>

#include "common/base/round_up.h"
#include "common/cost/context_share.h"
#include "common/cost/cost_layer.h"
#include "common/cost/shared_kv_bytes.h"
#include "common/cost/tape_policy.h"
#include "common/cost/tensor_bytes.h"

namespace stemma {
namespace {

// Lists how the rows of a block attend where one rank has all of them. A block's first piece of a prefix may be behind
// earlier rows of that prefix.
LayerRuns RunsOfBlock(const PrefixShape& prefix, int64_t block_begin, int64_t block_rows) {
  LayerRuns runs;
  int64_t begin = 0, longest = 0;
  for (size_t i = 0; i < std::max<size_t>(prefix.lengths.size(), 1); ++i) {
    const int64_t end = prefix.lengths.empty() ? prefix.rows : begin + prefix.lengths[i];
    const int64_t piece = std::min(end, block_begin + block_rows) - std::max(begin, block_begin);
    if (piece > 0 && begin < block_begin) {
      runs.push_back({piece, piece, block_begin - begin});
    } else {
      longest = std::max(longest, piece);
    }
    begin = end;
  }
  if (longest > 0) runs.push_back({longest, longest, 0});
  return runs;
}

// What rows keep: the tape of all layers, K/V apart; and what travels between stages, as large as a layer's input.
struct KeptTensors {
  int64_t tape = 0, input = 0;
};

struct BlockAtWork {
  const ContextBlock& block;
  TensorBytes tensors;  // of one layer
  KeptTensors before;   // by the blocks before it
};

// The prefixes of a cluster in Phases A and C: what is on the device beside the layer at work. Where context-parallel
// ranks share the rows, it is the device of the rank that has most of them.
class Prefixes {
 public:
  Prefixes(const ByteShape& shape, const PrefixShape& prefix, bool forward_only = false)
      : s_(shape),
        p_(prefix),
        shares_(SharesRows(shape, prefix)),
        regathers_(shares_ && prefix.regather),
        share_(shares_ ? ShareOf(shape, prefix) : nullptr),
        own_(shares_ ? share_->largest() : RowsOfRank(shape, prefix)),
        layers_(shape.config.num_layers),
        row_(shape),
        held_rows_(regathers_ ? own_.rows : prefix.rows),
        keeps_blocks_inputs_(!shape.first_stage && !forward_only && !KeepsInputs(prefix.policy)) {}

  // Calls f(block at work) for the blocks at whose work most may be there, of shared ones for all.
  template <typename F>
  void ForHighestBlocks(const F& f) const {
    const auto at_work = [&](const ContextBlock& block) {
      f(BlockAtWork{block, TensorBytes(s_, block.part), KeptBy(block.before)});
    };
    if (!shares_) return ForHighestWholeBlocks(at_work);
    for (const ContextBlock& block : share_->blocks()) at_work(block);
  }

  // Calls f(layer, whether it is full) for the layers at whose work most may be there: the last one of those of which
  // only K and V are wanted, and of the full ones.
  template <typename F>
  void ForHighestLayers(const F& f) const {
    if (s_.full_layers() < layers_) f(layers_ - 1, /*full=*/false);
    if (s_.full_layers() > 0) f(s_.full_layers() - 1, /*full=*/true);
  }

  int64_t Index() const {
    const int64_t shared = shares_ ? own_.rows * kOwnIndexBytes + p_.rows * kGatherIndexBytes : 0;
    return own_.rows * kIndexBytes + shared;
  }
  int64_t Kv() const { return layers_ * LayerKv() + Index(); }
  int64_t GradientKv() const { return layers_ * held_rows_ * row_.gradient; }

  // Counts what all blocks keep.
  KeptTensors KeptByAll() const { return KeptBy(own_); }

  // What a stage begins a block with: the rows that it looks up; else they are its first layer's input.
  int64_t InputBytes(const TensorBytes& t) const { return s_.first_stage ? EmbeddingBytes(t) : t.input; }

  // Count what travels between stages, of rows that are so large there: the last layer's outputs, until the next stage
  // has taken them; and, where Phase C runs the blocks again, their inputs, which the stage before sent once.
  int64_t Outputs(int64_t input) const { return s_.last_stage ? 0 : input; }
  int64_t KeptInputs(int64_t input) const { return keeps_blocks_inputs_ ? input : 0; }

  // Counts what stays on the device from Phase A to Phase C.
  PhaseBytes Kept() const {
    const KeptTensors kept = KeptByAll();
    return {.hot_set = Kv() + GradientKv(),
            .dormant_set = OnDevice(kept.tape) + Outputs(kept.input) + KeptInputs(kept.input)};
  }

  // Counts what is there when layer `layer` of a block is at work in Phase A. Blocks share one buffer of K/V a layer,
  // which the first block makes: at the layer's gathering where ranks share rows, else when the layer ends. K/V of a
  // block that is alone are the layer's own.
  PhaseBytes Forward(const BlockAtWork& at, int64_t layer, int64_t working_set) const {
    const int64_t made = is_first(at) ? layer : layers_;
    const int64_t inputs = KeptInputs(at.before.input + (layer > 0 ? at.tensors.input : 0));
    return {.hot_set = made * LayerKv() + Index(),
            .dormant_set = OnDevice(TapeUpTo(at, layer)) + Outputs(at.before.input) + inputs,
            .working_set = working_set};
  }

  // Tells whether a layer's K/V are copied into a buffer that this block makes.
  bool CopiesKv(const BlockAtWork& at) const { return !shares_ && is_first(at) && at.block.rows < p_.rows; }

  // Counts what Forward does, when the layer ends and such a block has made its buffer.
  PhaseBytes KvCopied(const BlockAtWork& at, int64_t layer, int64_t working_set) const {
    PhaseBytes bytes = Forward(at, layer, working_set);
    bytes.hot_set += LayerKv();
    return bytes;
  }

  // Counts what a layer of Phase A adds from its gathering on.
  SharedKv Gather(const BlockAtWork& at) const {
    if (!shares_) return {};
    const int64_t made = is_first(at) ? LayerKv() : 0;
    if (regathers_) return {.held = made + p_.rows * row_.kv, .gathering = GatherBytes(s_, own_.rows)};
    const int64_t part = at.block.part;
    return {.held = made, .gathering = part * row_.kv + GatherBytes(s_, part)};
  }

  // Counts the same of the last layer, whose rows attend to nothing: where K/V are gathered again, they are not there.
  SharedKv LastGather(const BlockAtWork& at) const {
    if (!regathers_) return Gather(at);
    return {.held = is_first(at) ? LayerKv() : 0};
  }

  // Counts what is there when a layer is at work in Phase C. The first block frees the K/V and accumulators of the
  // layers above.
  PhaseBytes Backward(const BlockAtWork& at, int64_t layer, int64_t working_set) const {
    const int64_t freed = is_first(at) ? layers_ - 1 - layer : 0;
    return {.hot_set = Kv() + GradientKv() - freed * held_rows_ * (row_.kv + row_.gradient),
            .dormant_set = KeepsInputs(p_.policy) ? OnDevice(TapeUpTo(at, layer)) : AgainUpTo(at, layer),
            .working_set = Coming(layer - 1) + working_set};
  }

  // Counts the same when Phase C makes a block's tape again: all K/V and accumulators are there, and what the next
  // stage sent.
  PhaseBytes ForwardAgain(const BlockAtWork& at, int64_t layer, int64_t working_set) const {
    return {.hot_set = Kv() + GradientKv(),
            .dormant_set = AgainUpTo(at, layer),
            .working_set = working_set + Outputs(at.tensors.input)};
  }

  // Counts what a layer of Phase C holds until each rank has received the sum of what all ranks have for its rows.
  // Where K/V are gathered again, those of all rows are freed before, and gK/gV of all rows when they have been packed.
  SharedKv Reduce(const BlockAtWork& at) const {
    SharedKv shared;
    if (!shares_) return shared;
    const int64_t part = regathers_ ? own_.rows : at.block.part, output = part * row_.gradient;
    shared.reducing = ReduceBytes(s_, part) + output;
    if (regathers_) {
      shared.gathered = p_.rows * (row_.kv + row_.gradient);
      shared.reducing = std::max(shared.reducing, p_.rows * row_.gradient + ReduceBytes(s_, part) / 2);
    } else {
      shared.reduced = output;
    }
    return shared;
  }

  // Counts the same of the last layer: where K/V are gathered again, the sums are with the rows' owners.
  SharedKv LastReduce(const BlockAtWork& at) const { return regathers_ ? SharedKv{} : Reduce(at); }

  // Says where the K/V of own rows are in backward: the hot set's, unless each rank holds those of all rows.
  KvOwner Owner() const { return shares_ && !regathers_ ? KvOwner::kShared : KvOwner::kPrefix; }

  // Counts what a layer that runs again needs of all rows.
  int64_t AllRows() const { return regathers_ ? p_.rows * row_.kv : 0; }

 private:
  // Calls f(block) where one rank has all rows: beside the last block, which may be short, and the one before it is the
  // most tape; and a prefix has its longest ancestor in the block where it ends, or, of a whole block's rows, in the
  // one before.
  template <typename F>
  void ForHighestWholeBlocks(const F& f) const {
    if (p_.rows == 0) return;
    const int64_t block_rows = BlockRows(p_), parts = DivideUp(block_rows, s_.tp);
    int64_t end = 0, next = 0;  // blocks from `next` on are not asked yet
    for (size_t i = 0; i < std::max<size_t>(p_.lengths.size(), 1); ++i) {
      end = p_.lengths.empty() ? p_.rows : end + p_.lengths[i];
      const int64_t last = (end - 1) / block_rows;
      for (next = std::max(next, last - 1); next <= last; ++next) {
        const int64_t begin = next * block_rows, rows = std::min(block_rows, p_.rows - begin);
        f(ContextBlock{.begin = begin,
                       .rows = rows,
                       .part = rows,
                       .before = {.rows = begin, .row_parts = next * parts},
                       .runs = RunsOfBlock(p_, begin, rows)});
      }
    }
  }

  // Counts what a tape of so many bytes takes on the device beside the layer at work.
  int64_t OnDevice(int64_t bytes) const { return p_.offload ? std::min(bytes, p_.headroom_bytes) : bytes; }

  // Counts a layer's K/V on their way here, of those whose rows attend to others.
  int64_t Coming(int64_t layer) const {
    return regathers_ && layer >= 0 && layer < s_.full_layers() ? GatherBytes(s_, own_.rows) : 0;
  }

  bool is_first(const BlockAtWork& at) const { return at.block.begin == 0; }
  int64_t LayerKv() const { return held_rows_ * row_.kv; }

  KeptTensors KeptBy(const ContextRows& rows) const {
    if (rows.rows == 0) return {};
    const TensorBytes t(s_, rows.rows, rows.row_parts);
    const int64_t kv_only = (layers_ - s_.full_layers()) * t.kv_only_tape(p_.policy);
    return {.tape = s_.full_layers() * t.tape(p_.policy) + kv_only, .input = t.input};
  }

  // Counts the tape of the blocks before, and of the block's layers below this one.
  int64_t TapeUpTo(const BlockAtWork& at, int64_t layer) const {
    return at.before.tape + layer * at.tensors.tape(p_.policy);
  }
  // Counts the same where Phase C makes a block's tape again.
  int64_t AgainUpTo(const BlockAtWork& at, int64_t layer) const {
    return layer * at.tensors.tape(v1::S0) + KeptInputs(at.before.input);
  }

  const ByteShape& s_;
  const PrefixShape& p_;
  const bool shares_;
  const bool regathers_;
  const std::shared_ptr<const ContextShare> share_;  // null: ranks share no rows
  const ContextRows own_;                            // in all blocks
  const int64_t layers_;
  const KvRows row_;
  const int64_t held_rows_;  // whose K/V and gK/gV stay from Phase A to Phase C
  const bool keeps_blocks_inputs_;
};

// Raises `highest` to the layers at work in Phase A. `policy`: what a layer keeps while it runs.
void RaiseForward(const Prefixes& prefixes, v1::TapePolicy policy, PhaseBytes& highest) {
  prefixes.ForHighestBlocks([&](const BlockAtWork& at) {
    const TensorBytes& t = at.tensors;
    highest.RaiseTo(prefixes.Forward(at, 0, prefixes.InputBytes(t)));
    prefixes.ForHighestLayers([&](int64_t layer, bool full) {
      const int64_t bytes = full ? LayerForwardBytes(t, at.block.runs, policy, prefixes.Gather(at))
                                 : KvOnlyForwardBytes(t, policy, prefixes.LastGather(at));
      highest.RaiseTo(prefixes.Forward(at, layer, bytes));
      if (!prefixes.CopiesKv(at)) return;
      const int64_t copy = full ? LayerCopyBytes(t, policy) : KvOnlyCopyBytes(t, policy);
      highest.RaiseTo(prefixes.KvCopied(at, layer, copy));
    });
  });
}

}  // namespace

int64_t HostTapeBytes(const ByteShape& shape, const PrefixShape& prefix) {
  return prefix.offload ? Prefixes(shape, prefix).KeptByAll().tape : 0;
}

PhaseBytes PrefixForwardBytes(const ByteShape& shape, const PrefixShape& prefix) {
  const Prefixes prefixes(shape, prefix);
  PhaseBytes highest = prefixes.Kept();  // the end: all tape is kept, the accumulators are made
  RaiseForward(prefixes, prefix.policy, highest);
  return highest;
}

PhaseBytes PrefixKeptBytes(const ByteShape& shape, const PrefixShape& prefix) { return Prefixes(shape, prefix).Kept(); }

PhaseBytes PrefixBackwardBytes(const ByteShape& shape, const PrefixShape& prefix) {
  const Prefixes prefixes(shape, prefix);
  const bool again = !KeepsInputs(prefix.policy);
  const v1::TapePolicy policy = again ? v1::S0 : prefix.policy;
  PhaseBytes highest;
  prefixes.ForHighestBlocks([&](const BlockAtWork& at) {
    const TensorBytes& t = at.tensors;
    if (again) highest.RaiseTo(prefixes.ForwardAgain(at, 0, prefixes.InputBytes(t)));
    prefixes.ForHighestLayers([&](int64_t layer, bool full) {
      if (again) {
        const int64_t forward =
            full ? prefixes.AllRows() + LayerForwardBytes(t, at.block.runs, policy) : KvOnlyForwardBytes(t);
        highest.RaiseTo(prefixes.ForwardAgain(at, layer, forward));
      }
      const SharedKv shared = full ? prefixes.Reduce(at) : prefixes.LastReduce(at);
      const int64_t bytes = full ? LayerBackwardBytes(t, at.block.runs, policy, prefixes.Owner(), shared)
                                 : KvOnlyBackwardBytes(t, policy, prefixes.Owner(), shared);
      highest.RaiseTo(prefixes.Backward(at, layer, bytes));
    });
  });
  return highest;
}

PhaseBytes ForwardPrefixBytes(const ByteShape& shape, const PrefixShape& prefix) {
  PrefixShape without_tape = prefix;
  without_tape.policy = v1::S5;
  const Prefixes prefixes(shape, without_tape, /*forward_only=*/true);
  PhaseBytes highest{.hot_set = prefixes.Kv(), .dormant_set = prefixes.Outputs(prefixes.KeptByAll().input)};
  RaiseForward(prefixes, v1::S0, highest);
  return highest;
}

int64_t ForwardKeptBytes(const ByteShape& shape, const PrefixShape& prefix) { return Prefixes(shape, prefix).Kv(); }

}  // namespace stemma
