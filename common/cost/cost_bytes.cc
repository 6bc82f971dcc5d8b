#include <algorithm>

#include "common/base/round_up.h"
#include "common/cost/cost.h"
#include "common/cost/cost_layer.h"
#include "common/cost/kernel_blocks.h"
#include "common/cost/tape_policy.h"

namespace stemma {
namespace {

constexpr int64_t kIndexBytes = 16;    // token and position of a row
constexpr int64_t kPositionBytes = 8;  // its position once more
constexpr int64_t kTargetBytes = 8;    // a row's target
constexpr int64_t kResultBytes = 16;   // its log-prob and entropy, kept until its wave's end
// What the head and the loss hold of a row: log-prob, entropy and their gradients, two numbers of its softmax; and what
// most losses read of it: log-prob by `old`, advantage, weight, mask.
constexpr int64_t kHeadRowBytes = 6 * 8 + 4 * 8;
constexpr int64_t kForwardHeadRowBytes = 4 * 8;  // in a forward-only pass: log-prob, entropy, the softmax's numbers

// One chunk of logits. In bf16 also what is upcast for their product: the chunk's hidden rows (in backward as many rows
// of their gradient) and a slice of the weight.
int64_t HeadChunkBytes(const ByteShape& s, int64_t rows) {
  const int64_t chunk = std::min(rows, s.head_chunk_rows);
  const bool upcasts = s.run_bytes != s.accumulate_bytes;
  const int64_t upcast =
      upcasts ? (chunk + std::min(kUpcastVocabulary, s.config.vocab_size)) * s.config.hidden_size : 0;
  return (chunk * s.config.vocab_size + upcast) * s.accumulate_bytes;
}

// The higher of two moments.
void Raise(PhaseBytes& highest, const PhaseBytes& moment) {
  if (moment.peak() > highest.peak()) highest = moment;
}

// A block of the prefixes at work, behind the rows before it.
struct Block {
  int64_t rows = 0, before = 0;
};

// The prefixes of a cluster in Phases A and C: what is on the device beside the layer at work.
class Prefixes {
 public:
  Prefixes(const ByteShape& shape, const PrefixShape& prefix)
      : p_(prefix), row_(shape), layers_(shape.config.num_layers) {
    block_rows_ = p_.block_rows > 0 ? std::min(p_.block_rows, p_.rows) : p_.rows;
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

  const RowBytes& row() const { return row_; }

  int64_t Kv() const { return p_.rows * (layers_ * row_.kv + kIndexBytes); }
  int64_t GradientKv() const { return p_.rows * layers_ * row_.gradient_kv; }

  // Tape of all layers, K/V apart.
  int64_t Tape(int64_t rows, v1::TapePolicy policy) const {
    return rows * ((layers_ - 1) * row_.tape(policy) + row_.kv_only_tape(policy));
  }

  // What is on the device when layer `layer` of a block is at work in Phase A. Blocks share one buffer a layer, which
  // the first block makes; one block's K/V are the layers' own.
  PhaseBytes Forward(const Block& block, int64_t layer) const {
    const int64_t kv_layers = block.before > 0 ? layers_ : layer;
    return {.hot_set = p_.rows * (kv_layers * row_.kv + kIndexBytes),
            .dormant_set = OnDevice(Tape(block.before, p_.policy) + block.rows * layer * row_.tape(p_.policy))};
  }

  // Whether the layers' K/V are copied into buffers that this block makes. Later blocks have those of all layers.
  bool MakesBuffers(const Block& block) const { return block.before == 0 && block.rows < p_.rows; }

  // The same as Forward when the layer ends and such a block has made its buffers.
  PhaseBytes BuffersMade(const Block& block, int64_t layer) const {
    PhaseBytes bytes = Forward(block, layer);
    bytes.hot_set += p_.rows * row_.kv;
    return bytes;
  }

  // The same in Phase C, by the tape of `policy`. The first block frees the K/V and accumulators of layers above.
  PhaseBytes Backward(const Block& block, int64_t layer) const {
    const int64_t freed = block.before == 0 ? layers_ - 1 - layer : 0;
    PhaseBytes bytes{.hot_set = Kv() + GradientKv() - p_.rows * freed * (row_.kv + row_.gradient_kv)};
    bytes.dormant_set = KeepsInputs(p_.policy)
                            ? OnDevice(Tape(block.before, p_.policy) + block.rows * layer * row_.tape(p_.policy))
                            : block.rows * layer * row_.tape(v1::S0);
    return bytes;
  }

  // The same when Phase C makes a block's tape again: all K/V and accumulators are there.
  PhaseBytes ForwardAgain(const Block& block, int64_t layer, int64_t working_set) const {
    return {.hot_set = Kv() + GradientKv(),
            .dormant_set = block.rows * layer * row_.tape(v1::S0),
            .working_set = working_set};
  }

  // A block's first piece of a prefix may be behind earlier rows of that prefix.
  LayerRows Rows(const Block& block) const {
    LayerRows l{.rows = block.rows};
    int64_t begin = 0, longest = 0;
    for (size_t i = 0; i < std::max<size_t>(p_.lengths.size(), 1); ++i) {
      const int64_t end = p_.lengths.empty() ? p_.rows : begin + p_.lengths[i];
      const int64_t piece = std::min(end, block.before + block.rows) - std::max(begin, block.before);
      if (piece > 0 && begin < block.before) {
        l.runs.push_back({piece, piece, block.before - begin});
      } else {
        longest = std::max(longest, piece);
      }
      begin = end;
    }
    if (longest > 0) l.runs.push_back({longest, longest, 0});
    return l;
  }

  // What a tape of `bytes` takes on the device beside the layer at work.
  int64_t OnDevice(int64_t bytes) const { return p_.offload ? std::min(bytes, p_.headroom_bytes) : bytes; }

 private:
  const PrefixShape& p_;
  const RowBytes row_;
  const int64_t layers_;
  int64_t block_rows_ = 0;
};

// A wave's layers: all rows in those below the last; there dense trajectories' rows before the last prompt token apart.
class Wave {
 public:
  Wave(const ByteShape& shape, const WaveShape& wave)
      : s_(shape),
        w_(wave),
        row_(shape),
        layers_(shape.config.num_layers),
        head_rows_(wave.rows - wave.kv_only_rows),
        kept_row_(row_.tape(wave.policy) + row_.kv) {}

  // The tape of so many layers below the last.
  int64_t Below(int64_t layers) const { return w_.rows * layers * kept_row_; }
  // What the last layer's rows before the last prompt token keep, with their K/V and the gradients of those.
  int64_t KvOnly() const { return w_.kv_only_rows * (row_.kv_only_tape(w_.policy) + row_.kv + row_.gradient_kv); }
  int64_t Last() const { return head_rows_ * kept_row_; }
  int64_t Index() const { return w_.rows * kIndexBytes; }
  int64_t Targets() const { return head_rows_ * kTargetBytes; }  // in the forward
  int64_t Results() const { return head_rows_ * kResultBytes; }  // in the backward
  int64_t HeadPositions() const { return split() ? head_rows_ * kPositionBytes : 0; }

  LayerRows RowsBelow() const {
    LayerRows l{.rows = w_.rows};
    for (const WaveRun& run : w_.runs) {
      l.runs.push_back({run.rows, run.longest_rows, run.ancestor_rows, run.padded_members});
    }
    if (w_.runs.empty()) l.runs.push_back({w_.rows, w_.rows, 0});
    return l;
  }

  // A trajectory's own rows before the last prompt token are its ancestor.
  LayerRows RowsOfLast() const {
    LayerRows l{.rows = head_rows_};
    for (const WaveRun& run : w_.runs) {
      if (run.only_below) continue;
      const int64_t apart = run.kv_only_rows, ancestor = apart > 0 ? apart : run.ancestor_rows;
      l.runs.push_back({run.rows - apart, run.longest_rows - apart, ancestor, run.padded_members});
    }
    if (w_.runs.empty()) l.runs.push_back({head_rows_, head_rows_, w_.kv_only_rows});
    return l;
  }

  // Calls f(bytes) at each moment of a forward-only pass that may be the highest. What a layer makes is there until
  // the next one begins, as with S0.
  template <typename F>
  void ForForwardMoments(const F& f) const {
    const v1::TapePolicy policy = v1::S0;
    const int64_t d = row_.input, apart = w_.kv_only_rows, always = Index() + Targets();
    if (layers_ > 1) f(always + LayerForwardBytes(row_, RowsBelow(), policy));
    const int64_t kv_only = apart * (row_.kv_only_tape(policy) + row_.kv);
    if (split()) {
      f(always + w_.rows * d + apart * kPositionBytes + KvOnlyForwardBytes(row_, apart));
      f(always + kv_only + w_.rows * (d + kPositionBytes) + head_rows_ * d);
    }
    const int64_t last = always + HeadPositions() + kv_only;
    f(last + LayerForwardBytes(row_, RowsOfLast(), policy));
    // The last layer's tensors are there until its output is normed.
    f(last + head_rows_ * (row_.tape(policy) + row_.kv + 2 * d + row_.statistic));
    f(always + head_rows_ * (d + kForwardHeadRowBytes) + HeadChunkBytes(s_, head_rows_));
  }

  // Calls f(tape, working set) at each moment that may be the highest.
  template <typename F>
  void ForMoments(const F& f) const {
    const int64_t d = row_.input, all = layers_ - 1;
    const LayerPeaks last = PeaksOf(RowsOfLast());
    if (layers_ > 1) {
      // Where no rows are set apart, the last layer's are those of the layers below.
      const LayerPeaks below = split() ? PeaksOf(RowsBelow()) : last;
      f(Index() + Targets() + Below(layers_ - 2), below.forward);
      f(Index() + Results() + Below(layers_ - 2), HeadPositions() + below.backward);
    }
    if (split()) ForSplitMoments(f);
    const int64_t kept = Index() + HeadPositions() + Below(all) + KvOnly();
    f(kept + Targets(), last.forward);
    f(kept + Results(), head_rows_ * row_.statistic + last.backward);
    // The last layer's output, its norm, its gradient, one chunk of logits, the rows of head and loss.
    f(Index() + Targets() + Below(all) + KvOnly() + Last(),
      head_rows_ * (3 * d + row_.statistic + kHeadRowBytes) + HeadChunkBytes(s_, head_rows_));
  }

 private:
  struct LayerPeaks {
    int64_t forward = 0, backward = 0;
  };

  bool split() const { return w_.kv_only_rows > 0; }

  LayerPeaks PeaksOf(const LayerRows& rows) const {
    return {LayerForwardBytes(row_, rows, w_.policy), LayerBackwardBytes(row_, rows, w_.policy, KvOwner::kWave)};
  }

  // Where rows are set apart and put together again.
  template <typename F>
  void ForSplitMoments(const F& f) const {
    const int64_t tape = Index() + Below(layers_ - 1), d = row_.input, apart = w_.kv_only_rows;
    const int64_t all_inputs = w_.rows * d, head_inputs = head_rows_ * d;
    f(tape + Targets(), all_inputs + apart * kPositionBytes + KvOnlyForwardBytes(row_, apart));
    f(tape + Targets() + KvOnly(), all_inputs + w_.rows * kPositionBytes + head_inputs);
    f(tape + Results(), head_inputs + w_.rows * kPositionBytes + apart * row_.gradient_kv +
                            KvOnlyBackwardBytes(row_, apart, w_.policy, KvOwner::kWave));
    f(tape + Results(), 2 * all_inputs + w_.rows * kPositionBytes);
  }

  const ByteShape& s_;
  const WaveShape& w_;
  const RowBytes row_;
  const int64_t layers_, head_rows_;
  const int64_t kept_row_;  // tape and K/V of a row in a full layer
};

// The layers at work in Phase A; `policy`: what a layer keeps while it runs.
void RaiseForward(const Prefixes& prefixes, v1::TapePolicy policy, PhaseBytes& highest) {
  const RowBytes& row = prefixes.row();
  const int64_t last = row.shape.config.num_layers - 1;
  prefixes.ForHighestBlocks([&](const Block& block) {
    const auto raise = [&](PhaseBytes moment, int64_t working_set) {
      moment.working_set = working_set;
      Raise(highest, moment);
    };
    const bool makes_buffers = prefixes.MakesBuffers(block);
    raise(prefixes.Forward(block, last), KvOnlyForwardBytes(row, block.rows));
    if (makes_buffers) raise(prefixes.BuffersMade(block, last), KvOnlyCopyBytes(row, block.rows, policy));
    if (last == 0) return;
    raise(prefixes.Forward(block, last - 1), LayerForwardBytes(row, prefixes.Rows(block), policy));
    if (makes_buffers) raise(prefixes.BuffersMade(block, last - 1), LayerCopyBytes(row, block.rows, policy));
  });
}

bool Covers(const WaveRun& a, const WaveRun& b) {
  return a.rows >= b.rows && a.longest_rows >= b.longest_rows && a.ancestor_rows >= b.ancestor_rows &&
         a.padded_members >= b.padded_members && a.kv_only_rows == b.kv_only_rows && a.only_below == b.only_below;
}

}  // namespace

void AddRun(const WaveRun& run, WaveShape& wave) {
  for (const WaveRun& other : wave.runs) {
    if (Covers(other, run)) return;
  }
  const auto covered = [&](const WaveRun& other) { return Covers(run, other); };
  wave.runs.erase(std::remove_if(wave.runs.begin(), wave.runs.end(), covered), wave.runs.end());
  wave.runs.push_back(run);
}

double CausalScoreBlocks(int64_t rows) {
  // So many query blocks in a row see the same number of key blocks.
  const int64_t step = AttentionQueryBlock(rows, /*causal=*/true), steps = kAttentionKeyBlock / step;
  const int64_t whole = rows / step, keys = whole / steps;
  int64_t blocks = steps * keys * (keys + 1) / 2 + (whole - steps * keys) * (keys + 1);
  if (rows % step > 0) blocks += DivideUp(rows, kAttentionKeyBlock);
  return static_cast<double>(blocks);
}

double AncestorScoreBlocks(int64_t rows, int64_t keys) {
  const int64_t key_blocks = DivideUp(keys, kAttentionKeyBlock);
  return static_cast<double>(rows) / static_cast<double>(AttentionQueryBlock(rows, /*causal=*/false)) *
         static_cast<double>(key_blocks);
}

int64_t HostTapeBytes(const ByteShape& shape, const PrefixShape& prefix) {
  return prefix.offload ? Prefixes(shape, prefix).Tape(prefix.rows, prefix.policy) : 0;
}

PhaseBytes PrefixForwardBytes(const ByteShape& shape, const PrefixShape& prefix) {
  const Prefixes prefixes(shape, prefix);
  // The end: all tape is kept, the accumulators are made.
  PhaseBytes highest{.hot_set = prefixes.Kv() + prefixes.GradientKv(),
                     .dormant_set = prefixes.OnDevice(prefixes.Tape(prefix.rows, prefix.policy))};
  RaiseForward(prefixes, prefix.policy, highest);
  return highest;
}

PhaseBytes PrefixKeptBytes(const ByteShape& shape, const PrefixShape& prefix) {
  const Prefixes prefixes(shape, prefix);
  return {.hot_set = prefixes.Kv() + prefixes.GradientKv(),
          .dormant_set = prefixes.OnDevice(prefixes.Tape(prefix.rows, prefix.policy))};
}

PhaseBytes WaveBytes(const ByteShape& shape, const WaveShape& wave) {
  PhaseBytes highest;
  Wave(shape, wave).ForMoments([&](int64_t tape, int64_t working_set) {
    Raise(highest, {.wave_tape = tape, .working_set = working_set});
  });
  return highest;
}

PhaseBytes SuffixBytes(const ByteShape& shape, const PrefixShape& prefix, const WaveShape& wave) {
  const PhaseBytes kept = PrefixKeptBytes(shape, prefix), added = WaveBytes(shape, wave);
  return {.hot_set = kept.hot_set,
          .dormant_set = kept.dormant_set,
          .wave_tape = added.wave_tape,
          .working_set = added.working_set};
}

PhaseBytes PrefixBackwardBytes(const ByteShape& shape, const PrefixShape& prefix) {
  const Prefixes prefixes(shape, prefix);
  const bool again = !KeepsInputs(prefix.policy);
  const v1::TapePolicy policy = again ? v1::S0 : prefix.policy;
  const int64_t last = shape.config.num_layers - 1;
  const RowBytes& row = prefixes.row();
  PhaseBytes highest;
  prefixes.ForHighestBlocks([&](const Block& block) {
    const auto raise = [&](int64_t layer, int64_t working_set) {
      PhaseBytes moment = prefixes.Backward(block, layer);
      moment.working_set += working_set;
      Raise(highest, moment);
    };
    raise(last, KvOnlyBackwardBytes(row, block.rows, policy, KvOwner::kPrefix));
    if (again) {
      Raise(highest, prefixes.ForwardAgain(block, last, KvOnlyForwardBytes(row, block.rows)));
      if (last > 0) {
        const int64_t layer = LayerForwardBytes(row, prefixes.Rows(block), policy);
        Raise(highest, prefixes.ForwardAgain(block, last - 1, layer));
      }
    }
    if (last > 0) raise(last - 1, LayerBackwardBytes(row, prefixes.Rows(block), policy, KvOwner::kPrefix));
  });
  return highest;
}

PhaseBytes ForwardPrefixBytes(const ByteShape& shape, const PrefixShape& prefix) {
  PrefixShape without_tape = prefix;
  without_tape.policy = v1::S5;
  const Prefixes prefixes(shape, without_tape);
  PhaseBytes highest{.hot_set = prefixes.Kv()};
  RaiseForward(prefixes, v1::S0, highest);
  return highest;
}

int64_t ForwardKeptBytes(const ByteShape& shape, int64_t prefix_rows) {
  const PrefixShape prefix{.rows = prefix_rows};
  return Prefixes(shape, prefix).Kv();
}

int64_t ForwardWaveBytes(const ByteShape& shape, const WaveShape& wave) {
  int64_t highest = 0;
  Wave(shape, wave).ForForwardMoments([&](int64_t bytes) { highest = std::max(highest, bytes); });
  return highest;
}

}  // namespace stemma
