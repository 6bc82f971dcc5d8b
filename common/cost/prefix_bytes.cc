#include <algorithm>
#include <optional>

#include "common/cost/context_prefix_bytes.h"
#include "common/cost/cost.h"
#include "common/cost/cost_layer.h"
#include "common/cost/tape_policy.h"

namespace stemma {
namespace {

// A block of the prefixes at work, behind the rows before it.
struct Block {
  int64_t rows = 0, before = 0;
};

// The prefixes of a cluster in Phases A and C: what is on the device beside the layer at work.
class Prefixes {
 public:
  Prefixes(const ByteShape& shape, const PrefixShape& prefix, bool forward_only = false)
      : s_(shape),
        p_(prefix),
        layers_(shape.config.num_layers),
        keeps_blocks_inputs_(!shape.first_stage && !forward_only && !KeepsInputs(prefix.policy)),
        block_rows_(p_.block_rows > 0 ? std::min(p_.block_rows, p_.rows) : p_.rows),
        kv_(p_.rows * shape.run_bytes * 2 * shape.config.kv_size()),
        gradient_kv_(p_.rows * shape.accumulate_bytes * 2 * shape.config.kv_size()),
        block_(shape, block_rows_) {
    if (block_rows_ > 0 && p_.rows % block_rows_ > 0) rest_.emplace(shape, p_.rows % block_rows_);
  }

  // Those that may be the highest: beside the last block, which may be short, and the one before it is the most tape;
  // and a prefix has its longest ancestor in the block where it ends, or, of a whole block's rows, in the one before.
  template <typename F>
  void ForHighestBlocks(const F& f) const {
    if (p_.rows == 0) return;
    int64_t end = 0, next = 0;  // blocks from `next` on are not asked yet
    for (size_t i = 0; i < std::max<size_t>(p_.lengths.size(), 1); ++i) {
      end = p_.lengths.empty() ? p_.rows : end + p_.lengths[i];
      const int64_t block = (end - 1) / block_rows_;
      for (next = std::max(next, block - 1); next <= block; ++next) {
        const int64_t before = next * block_rows_;
        f(Block{std::min(block_rows_, p_.rows - before), before});
      }
    }
  }

  // Calls f(layer, whether it is full) for the layers at whose work most may be there: the last one of those of which
  // only K and V are wanted, and of the full ones.
  template <typename F>
  void ForHighestLayers(const F& f) const {
    if (s_.full_layers() < layers_) f(layers_ - 1, /*full=*/false);
    if (s_.full_layers() > 0) f(s_.full_layers() - 1, /*full=*/true);
  }

  // The tensors of a block's layers.
  const TensorBytes& Tensors(const Block& block) const { return block.rows == block_rows_ ? block_ : *rest_; }

  int64_t Kv() const { return layers_ * kv_ + p_.rows * kIndexBytes; }
  int64_t GradientKv() const { return layers_ * gradient_kv_; }

  // Tape of all layers of the blocks in the first `rows`, K/V apart.
  int64_t Tape(int64_t rows, v1::TapePolicy policy) const {
    if (rows == 0) return 0;
    const int64_t whole = rows / block_rows_ * TapeOf(block_, policy);
    return rows % block_rows_ == 0 ? whole : whole + TapeOf(*rest_, policy);
  }

  // What a stage begins a block with: the rows that it looks up; else they are its first layer's input.
  int64_t InputBytes(const TensorBytes& t) const { return s_.first_stage ? EmbeddingBytes(t) : t.input; }

  // What travels between stages, of the first `rows`: the last layer's outputs, until the next stage has taken them;
  // and, where Phase C runs the blocks again, their inputs, which the stage before sent once.
  int64_t Outputs(int64_t rows) const { return s_.last_stage ? 0 : RowsOfModel(rows); }
  int64_t KeptInputs(int64_t rows) const { return keeps_blocks_inputs_ ? RowsOfModel(rows) : 0; }

  // What stays on the device from Phase A to Phase C.
  PhaseBytes Kept() const {
    const int64_t tape = OnDevice(Tape(p_.rows, p_.policy));
    return {.hot_set = Kv() + GradientKv(), .dormant_set = tape + Outputs(p_.rows) + KeptInputs(p_.rows)};
  }

  // What is on the device when layer `layer` of a block is at work in Phase A. Blocks share one buffer a layer, which
  // the first block makes; one block's K/V are the layers' own.
  PhaseBytes Forward(const Block& block, int64_t layer) const {
    const int64_t kv_layers = block.before > 0 ? layers_ : layer;
    return {.hot_set = kv_layers * kv_ + p_.rows * kIndexBytes,
            .dormant_set = OnDevice(Tape(block.before, p_.policy) + layer * Tensors(block).tape(p_.policy)) +
                           Outputs(block.before) + KeptInputs(layer > 0 ? block.before + block.rows : block.before)};
  }

  // Whether the layers' K/V are copied into buffers that this block makes. Later blocks have those of all layers.
  bool MakesBuffers(const Block& block) const { return block.before == 0 && block.rows < p_.rows; }

  // The same as Forward when the layer ends and such a block has made its buffers.
  PhaseBytes BuffersMade(const Block& block, int64_t layer) const {
    PhaseBytes bytes = Forward(block, layer);
    bytes.hot_set += kv_;
    return bytes;
  }

  // The same in Phase C, by the tape of `policy`. The first block frees the K/V and accumulators of layers above.
  PhaseBytes Backward(const Block& block, int64_t layer) const {
    const int64_t freed = block.before == 0 ? layers_ - 1 - layer : 0;
    PhaseBytes bytes{.hot_set = Kv() + GradientKv() - freed * (kv_ + gradient_kv_)};
    bytes.dormant_set = KeepsInputs(p_.policy)
                            ? OnDevice(Tape(block.before, p_.policy) + layer * Tensors(block).tape(p_.policy))
                            : layer * Tensors(block).tape(v1::S0) + KeptInputs(block.before);
    return bytes;
  }

  // The same when Phase C makes a block's tape again: all K/V and accumulators are there, and what the next stage sent.
  PhaseBytes ForwardAgain(const Block& block, int64_t layer, int64_t working_set) const {
    const TensorBytes& tensors = Tensors(block);
    return {.hot_set = Kv() + GradientKv(),
            .dormant_set = layer * tensors.tape(v1::S0) + KeptInputs(block.before),
            .working_set = working_set + (s_.last_stage ? 0 : tensors.input)};
  }

  // A block's first piece of a prefix may be behind earlier rows of that prefix.
  LayerRuns Runs(const Block& block) const {
    LayerRuns runs;
    int64_t begin = 0, longest = 0;
    for (size_t i = 0; i < std::max<size_t>(p_.lengths.size(), 1); ++i) {
      const int64_t end = p_.lengths.empty() ? p_.rows : begin + p_.lengths[i];
      const int64_t piece = std::min(end, block.before + block.rows) - std::max(begin, block.before);
      if (piece > 0 && begin < block.before) {
        runs.push_back({piece, piece, block.before - begin});
      } else {
        longest = std::max(longest, piece);
      }
      begin = end;
    }
    if (longest > 0) runs.push_back({longest, longest, 0});
    return runs;
  }

  // What a tape of `bytes` takes on the device beside the layer at work.
  int64_t OnDevice(int64_t bytes) const { return p_.offload ? std::min(bytes, p_.headroom_bytes) : bytes; }

 private:
  int64_t TapeOf(const TensorBytes& t, v1::TapePolicy policy) const {
    const int64_t kv_only = (layers_ - s_.full_layers()) * t.kv_only_tape(policy);
    return s_.full_layers() * t.tape(policy) + kv_only;
  }

  // Rows as wide as the model, rounded block by block.
  int64_t RowsOfModel(int64_t rows) const {
    if (rows == 0) return 0;
    const int64_t whole = rows / block_rows_ * block_.input;
    return rows % block_rows_ == 0 ? whole : whole + rest_->input;
  }

  const ByteShape& s_;
  const PrefixShape& p_;
  const int64_t layers_;
  const bool keeps_blocks_inputs_;
  const int64_t block_rows_;
  const int64_t kv_, gradient_kv_;   // of all rows in one layer
  const TensorBytes block_;          // of a whole block
  std::optional<TensorBytes> rest_;  // of the last one where it is shorter
};

// The layers at work in Phase A; `policy`: what a layer keeps while it runs.
void RaiseForward(const Prefixes& prefixes, v1::TapePolicy policy, PhaseBytes& highest) {
  prefixes.ForHighestBlocks([&](const Block& block) {
    const TensorBytes& tensors = prefixes.Tensors(block);
    const auto raise = [&](PhaseBytes moment, int64_t working_set) {
      moment.working_set = working_set;
      highest.RaiseTo(moment);
    };
    const bool makes_buffers = prefixes.MakesBuffers(block);
    raise(prefixes.Forward(block, 0), prefixes.InputBytes(tensors));
    prefixes.ForHighestLayers([&](int64_t layer, bool full) {
      raise(prefixes.Forward(block, layer),
            full ? LayerForwardBytes(tensors, prefixes.Runs(block), policy) : KvOnlyForwardBytes(tensors));
      if (!makes_buffers) return;
      raise(prefixes.BuffersMade(block, layer),
            full ? LayerCopyBytes(tensors, policy) : KvOnlyCopyBytes(tensors, policy));
    });
  });
}

}  // namespace

int64_t HostTapeBytes(const ByteShape& shape, const PrefixShape& prefix) {
  if (!prefix.offload) return 0;
  if (SharesRows(shape, prefix)) return context::HostTapeBytes(shape, prefix);
  return Prefixes(shape, prefix).Tape(prefix.rows, prefix.policy);
}

PhaseBytes PrefixForwardBytes(const ByteShape& shape, const PrefixShape& prefix) {
  if (SharesRows(shape, prefix)) return context::PrefixForwardBytes(shape, prefix);
  const Prefixes prefixes(shape, prefix);
  PhaseBytes highest = prefixes.Kept();  // the end: all tape is kept, the accumulators are made
  RaiseForward(prefixes, prefix.policy, highest);
  return highest;
}

PhaseBytes PrefixKeptBytes(const ByteShape& shape, const PrefixShape& prefix) {
  if (SharesRows(shape, prefix)) return context::PrefixKeptBytes(shape, prefix);
  return Prefixes(shape, prefix).Kept();
}

PhaseBytes PrefixBackwardBytes(const ByteShape& shape, const PrefixShape& prefix) {
  if (SharesRows(shape, prefix)) return context::PrefixBackwardBytes(shape, prefix);
  const Prefixes prefixes(shape, prefix);
  const bool again = !KeepsInputs(prefix.policy);
  const v1::TapePolicy policy = again ? v1::S0 : prefix.policy;
  PhaseBytes highest;
  prefixes.ForHighestBlocks([&](const Block& block) {
    const TensorBytes& tensors = prefixes.Tensors(block);
    if (again) highest.RaiseTo(prefixes.ForwardAgain(block, 0, prefixes.InputBytes(tensors)));
    prefixes.ForHighestLayers([&](int64_t layer, bool full) {
      const LayerRuns runs = full ? prefixes.Runs(block) : LayerRuns{};
      if (again) {
        const int64_t forward = full ? LayerForwardBytes(tensors, runs, policy) : KvOnlyForwardBytes(tensors);
        highest.RaiseTo(prefixes.ForwardAgain(block, layer, forward));
      }
      PhaseBytes moment = prefixes.Backward(block, layer);
      moment.working_set += full ? LayerBackwardBytes(tensors, runs, policy, KvOwner::kPrefix)
                                 : KvOnlyBackwardBytes(tensors, policy, KvOwner::kPrefix);
      highest.RaiseTo(moment);
    });
  });
  return highest;
}

PhaseBytes ForwardPrefixBytes(const ByteShape& shape, const PrefixShape& prefix) {
  if (SharesRows(shape, prefix)) return context::ForwardPrefixBytes(shape, prefix);
  PrefixShape without_tape = prefix;
  without_tape.policy = v1::S5;
  const Prefixes prefixes(shape, without_tape, /*forward_only=*/true);
  PhaseBytes highest{.hot_set = prefixes.Kv(), .dormant_set = prefixes.Outputs(prefix.rows)};
  RaiseForward(prefixes, v1::S0, highest);
  return highest;
}

int64_t ForwardKeptBytes(const ByteShape& shape, const PrefixShape& prefix) {
  if (SharesRows(shape, prefix)) return context::ForwardKeptBytes(shape, prefix);
  return Prefixes(shape, prefix).Kv();
}

}  // namespace stemma
