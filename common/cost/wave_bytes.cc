#include "common/cost/wave_bytes.h"

#include <algorithm>
#include <optional>

#include "common/cost/cost_layer.h"
#include "common/cost/kernel_blocks.h"
#include "common/cost/regather_bytes.h"
#include "common/cost/shared_kv_bytes.h"
#include "common/cost/tensor_bytes.h"

namespace stemma {
namespace {

constexpr int64_t kPositionBytes = 8;  // its position once more
constexpr int64_t kTargetBytes = 8;    // a row's target
constexpr int64_t kResultBytes = 16;   // its log-prob and entropy, kept until its wave's end
// What the head and the loss hold of a row: log-prob, entropy and their gradients, two numbers of its softmax; and what
// most losses read of it: log-prob by `old`, advantage, weight, mask.
constexpr int64_t kHeadRowBytes = 6 * 8 + 4 * 8;
constexpr int64_t kForwardHeadRowBytes = 4 * 8;  // in a forward-only pass: log-prob, entropy, the softmax's numbers
// Numbers that tensor-parallel ranks exchange of a row of logits, in fp64, and what is made of them.
constexpr int64_t kChunkNumberBytes = 8, kOwnRowNumbers = 9, kRowNumbersOfRank = 8;

// One chunk of logits.
int64_t LogitsBytes(const ByteShape& s, int64_t rows) {
  return std::min(rows, s.head_chunk_rows) * s.config.vocab_size * s.accumulate_bytes;
}

// With a chunk of logits, what is there while it is at work. In bf16 what is upcast for their product: the chunk's
// hidden rows (in backward as many rows of their gradient) and a slice of the weight. Of several ranks, then, the
// numbers of the chunk's rows that they exchange: four of each rank, and as many made of them.
int64_t HeadChunkBytes(const ByteShape& s, int64_t rows) {
  const int64_t chunk = std::min(rows, s.head_chunk_rows);
  const bool upcasts = s.run_bytes != s.accumulate_bytes;
  const int64_t upcast =
      upcasts ? (chunk + std::min(kUpcastVocabulary, s.config.vocab_size)) * s.config.hidden_size : 0;
  const int64_t numbers = s.tp > 1 ? chunk * kChunkNumberBytes * (kOwnRowNumbers + kRowNumbersOfRank * s.tp) : 0;
  return LogitsBytes(s, rows) + std::max(upcast * s.accumulate_bytes, numbers);
}

// Trajectories in full have no prefix elsewhere: a wave of nothing else takes part in gathering, and adds nothing.
BesideLayer BesideOf(const WaveShape& wave, BesideLayer beside) {
  const bool attends =
      wave.runs.empty() || wave.cut_rows > 0 ||
      std::any_of(wave.runs.begin(), wave.runs.end(), [](const WaveRun& run) { return run.ancestor_rows > 0; });
  if (!attends) {
    beside.backward -= beside.gradients;
    beside.backward_last -= beside.gradients;
  }
  return beside;
}

// A wave's layers: all rows in those below the last; there dense trajectories' rows before the last prompt token apart,
// and after it the head. On a pipeline stage that is not the last one, all rows in all layers.
class Wave {
 public:
  Wave(const ByteShape& shape, const WaveShape& wave, const BesideLayer& beside)
      : s_(shape),
        w_(wave),
        beside_layer_(BesideOf(wave, beside)),
        layers_(shape.config.num_layers),
        all_(shape, wave.rows) {
    if (wave.kv_only_rows > 0 && shape.last_stage) {
      kv_only_rows_.emplace(shape, wave.kv_only_rows);
      head_rows_.emplace(shape, wave.rows - wave.kv_only_rows);
    }
    runs_on_top_ = shape.last_stage ? RunsOfLast() : RunsBelow();
  }

  // The tape of so many layers below the last.
  int64_t Below(int64_t layers) const { return layers * (all_.tape(w_.policy) + all_.kv); }
  // What the last layer's rows before the last prompt token keep, with their K/V and the gradients of those.
  int64_t KvOnly() const {
    return split() ? kv_only_rows_->kv_only_tape(w_.policy) + kv_only_rows_->kv + kv_only_rows_->gradient_kv : 0;
  }
  int64_t Last() const { return head().tape(w_.policy) + head().kv; }
  int64_t Index() const {
    const int64_t cut = is_cut() ? w_.cut_rows * kGatherIndexBytes + w_.rows * kOwnIndexBytes : 0;
    return w_.rows * kIndexBytes + cut;
  }
  int64_t Targets() const { return s_.last_stage ? head().rows * kTargetBytes : 0; }  // in the forward
  // In the backward. Of a rollout that is cut each rank has those of all rows.
  int64_t Results() const { return s_.last_stage ? std::max(head().rows, w_.cut_rows) * kResultBytes : 0; }
  int64_t HeadPositions() const { return split() ? head().rows * kPositionBytes : 0; }

  LayerRuns RunsBelow() const {
    LayerRuns runs;
    for (const WaveRun& run : w_.runs) {
      runs.push_back({run.rows, run.longest_rows, run.ancestor_rows, run.padded_members});
    }
    if (w_.runs.empty()) runs.push_back({w_.rows, w_.rows, 0});
    return runs;
  }

  // A trajectory's own rows before the last prompt token are its ancestor.
  LayerRuns RunsOfLast() const {
    LayerRuns runs;
    for (const WaveRun& run : w_.runs) {
      if (run.only_below) continue;
      const int64_t apart = run.kv_only_rows, ancestor = apart > 0 ? apart : run.ancestor_rows;
      runs.push_back({run.rows - apart, run.longest_rows - apart, ancestor, run.padded_members});
    }
    if (w_.runs.empty()) runs.push_back({head().rows, head().rows, w_.kv_only_rows});
    return runs;
  }

  // What stays between the wave's forward and its backward, where other operations run: on the last stage the head has
  // run, and left the last layer's output, and the gradient of what it read; the others keep what they send to the next
  // stage.
  int64_t Kept() const {
    const int64_t all = Index() + Below(s_.last_stage ? layers_ - 1 : layers_);
    if (!s_.last_stage) return all + all_.input;
    return all + HeadPositions() + KvOnly() + Last() + Results() + 2 * head().input + head().statistic;
  }

  // Calls f(bytes) at each moment of a forward-only pass that may be the highest. What a layer makes is there until
  // the next one begins, as with S0.
  template <typename F>
  void ForForwardMoments(const F& f) const {
    const v1::TapePolicy policy = v1::S0;
    const int64_t d = head().input, always = Index() + Targets();
    if (looks_up()) f(always + beside_layer_.embedding + EmbeddingBytes(all_));
    if (!s_.last_stage) {
      f(always + beside_layer_.forward_last + LayerForwardBytes(all_, runs_on_top_, policy, SharedForward()));
    }
    if (layers_ > 1) f(always + beside_layer_.forward + LayerForwardBytes(all_, RunsBelow(), policy, SharedForward()));
    if (!s_.last_stage) return;
    const int64_t kv_only = split() ? kv_only_rows_->kv_only_tape(policy) + kv_only_rows_->kv : 0;
    if (split()) {
      const int64_t there = always + beside_layer_.forward;
      f(there + GatherAll());
      f(there + all_.normed + SelectedRows(*kv_only_rows_) + kv_only_rows_->rows * kPositionBytes +
        KvOnlyForwardBytes(*kv_only_rows_));
      f(there + kv_only + all_.normed + w_.rows * kPositionBytes + SelectedRows(head()) + d);
    }
    const int64_t last = always + HeadPositions() + kv_only;
    f(last + beside_layer_.forward_last + LayerForwardBytes(head(), runs_on_top_, policy, SharedForward()));
    // The last layer's tensors are there until its output is normed.
    f(last + head().tape(policy) + head().kv + 2 * d + head().statistic);
    const int64_t chunk =
        std::max(head().gather_scratch, HeadRows(kForwardHeadRowBytes) + HeadChunkBytes(s_, head().rows));
    f(always + d + head().gathered + chunk);
  }

  // Call f(tape, working set) at each moment of the wave's forward, and of its backward, that may be the highest.
  template <typename F>
  void ForMomentsForward(const F& f) const {
    const BesideLayer& beside = beside_layer_;
    if (looks_up()) f(Index() + Targets(), beside.embedding + EmbeddingBytes(all_));
    const int64_t top = ForwardPeak(head(), runs_on_top_);
    const int64_t below = split() ? ForwardPeak(all_, RunsBelow()) : top;
    if (layers_ > 1) f(Index() + Targets() + Below(layers_ - 2), beside.forward + below);
    if (split()) ForSplitMomentsForward(f);
    f(BesideLast() + Targets(), beside.forward_last + top);
    if (!s_.last_stage) return f(Kept(), 0);
    f(Index() + Targets() + Below(layers_ - 1) + KvOnly() + Last(), Head());
  }

  template <typename F>
  void ForMomentsBackward(const F& f) const {
    const BesideLayer& beside = beside_layer_;
    const int64_t top = BackwardPeak(head(), runs_on_top_);
    const int64_t below = split() ? BackwardPeak(all_, RunsBelow()) : top;
    if (layers_ > 1) f(Index() + Results() + Below(layers_ - 2), beside.backward + HeadPositions() + below);
    if (split()) ForSplitMomentsBackward(f);
    f(BesideLast() + Results(), beside.backward_last + (s_.last_stage ? head().statistic : 0) + top);
  }

 private:
  // The tensors of the rows that the head reads, in the last layer.
  const TensorBytes& head() const { return head_rows_.has_value() ? *head_rows_ : all_; }
  bool split() const { return kv_only_rows_.has_value(); }
  bool looks_up() const { return s_.first_stage && s_.tp > 1; }

  int64_t BesideLast() const { return Index() + HeadPositions() + Below(layers_ - 1) + KvOnly(); }

  int64_t ForwardPeak(const TensorBytes& t, const LayerRuns& runs) const {
    return LayerForwardBytes(t, runs, w_.policy, SharedForward());
  }
  int64_t BackwardPeak(const TensorBytes& t, const LayerRuns& runs) const {
    return LayerBackwardBytes(t, runs, w_.policy, is_cut() ? KvOwner::kShared : KvOwner::kWave, SharedBackward());
  }

  bool is_cut() const { return w_.cut_rows > 0; }
  int64_t AttendedRows() const { return w_.cut_prefix_rows + w_.cut_rows; }

  // What a layer of a cut rollout holds from before attention to its end: K/V of the prefix and of all own rows, beside
  // each other.
  SharedKv SharedForward() const {
    if (!is_cut()) return {};
    const KvRows row(s_);
    return {.held = AttendedRows() * row.kv, .gathering = w_.rows * row.kv + GatherBytes(s_, w_.rows)};
  }

  // The same until gK/gV of the rollout's rows are with their owners; those are freed when they have been packed.
  SharedKv SharedBackward() const {
    if (!is_cut()) return {};
    const KvRows row(s_);
    SharedKv shared = SharedForward();
    shared.gathered = AttendedRows() * (row.kv + row.gradient);
    shared.reduced = w_.rows * row.gradient;
    shared.reducing = std::max(ReduceBytes(s_, w_.rows) + shared.reduced,
                               AttendedRows() * row.gradient + ReduceBytes(s_, w_.rows) / 2);
    return shared;
  }

  // What head and loss hold of their rows; with several ranks also the targets among the own tokens.
  int64_t HeadRows(int64_t row_bytes) const { return head().rows * (row_bytes + (s_.tp > 1 ? kTargetBytes : 0)); }

  // The last layer's output, its norm, gathered, and its gradient; the rows of head and loss; one chunk of logits,
  // which is there while the ranks' gradients are summed.
  int64_t Head() const {
    const int64_t there = 2 * head().input + head().statistic + head().gathered;
    const int64_t rows = head().product + HeadRows(kHeadRowBytes);
    const int64_t chunk = std::max(HeadChunkBytes(s_, head().rows), LogitsBytes(s_, head().rows) + head().sums);
    return there + std::max(head().gather_scratch, rows + chunk);
  }

  // Several ranks select rows among those of all, and each takes its own of them.
  int64_t SelectedRows(const TensorBytes& t) const { return s_.tp > 1 ? t.product : 0; }
  int64_t GatherAll() const { return all_.input + all_.gathered + all_.gather_scratch; }

  // Where rows are set apart, and put together again.
  template <typename F>
  void ForSplitMomentsForward(const F& f) const {
    const int64_t tape = Index() + Below(layers_ - 1) + Targets(), forward = beside_layer_.forward;
    const int64_t positions = w_.rows * kPositionBytes;
    f(tape, forward + GatherAll());
    f(tape, forward + all_.normed + SelectedRows(*kv_only_rows_) + kv_only_rows_->rows * kPositionBytes +
                KvOnlyForwardBytes(*kv_only_rows_));
    f(tape + KvOnly(), forward + all_.normed + positions + SelectedRows(head()) + head().input);
  }

  template <typename F>
  void ForSplitMomentsBackward(const F& f) const {
    const int64_t tape = Index() + Below(layers_ - 1) + Results(), backward = beside_layer_.backward_apart;
    const int64_t positions = w_.rows * kPositionBytes;
    f(tape, backward + head().input + positions + kv_only_rows_->gradient_kv +
                KvOnlyBackwardBytes(*kv_only_rows_, w_.policy, KvOwner::kWave));
    // Both kinds of rows, gathered; together; the own ones of them.
    f(tape, backward + positions + all_.gathered + all_.product + all_.input);
  }

  const ByteShape& s_;
  const WaveShape& w_;
  const BesideLayer beside_layer_;
  const int64_t layers_;
  const TensorBytes all_;
  // In the last layer, of the rows that are set apart, and of those that reach the head; neither where none are.
  std::optional<TensorBytes> kv_only_rows_, head_rows_;
  LayerRuns runs_on_top_;  // of the layer on top: the model's last one, or the stage's
};

bool Covers(const WaveRun& a, const WaveRun& b) {
  return a.rows >= b.rows && a.longest_rows >= b.longest_rows && a.ancestor_rows >= b.ancestor_rows &&
         a.padded_members >= b.padded_members && a.kv_only_rows == b.kv_only_rows && a.only_below == b.only_below;
}

// Returns a function that raises `highest` to a moment of a wave.
auto RaiseTo(PhaseBytes& highest) {
  return [&highest](int64_t tape, int64_t working_set) {
    highest.RaiseTo({.wave_tape = tape, .working_set = working_set});
  };
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

bool Covers(const WaveShape& a, const WaveShape& b) {
  const int64_t a_head = a.rows - a.kv_only_rows, b_head = b.rows - b.kv_only_rows;
  const bool sets_apart = a.kv_only_rows > 0;
  if (a.policy != b.policy || a.cut_rows > 0 || b.cut_rows > 0 || sets_apart != (b.kv_only_rows > 0)) return false;
  if (a_head < b_head || a.kv_only_rows < b.kv_only_rows || b.runs.empty()) return false;
  return std::all_of(b.runs.begin(), b.runs.end(), [&](const WaveRun& run) {
    return std::any_of(a.runs.begin(), a.runs.end(), [&](const WaveRun& other) { return Covers(other, run); });
  });
}

PhaseBytes WaveBytes(const ByteShape& shape, const WaveShape& wave, const BesideLayer& beside) {
  PhaseBytes highest;
  const Wave moments(shape, wave, beside);
  moments.ForMomentsForward(RaiseTo(highest));
  moments.ForMomentsBackward(RaiseTo(highest));
  return highest;
}

PhaseBytes SuffixBytes(const ByteShape& shape, const PrefixShape& prefix, const WaveShape& wave) {
  const PhaseBytes kept = PrefixKeptBytes(shape, prefix);
  const PhaseBytes added = WaveBytes(shape, wave, RegatherBytes(shape, prefix));
  return {.hot_set = kept.hot_set,
          .dormant_set = kept.dormant_set,
          .wave_tape = added.wave_tape,
          .working_set = added.working_set};
}

PhaseBytes WaveBytesInForward(const ByteShape& shape, const WaveShape& wave, const BesideLayer& beside) {
  PhaseBytes highest;
  Wave(shape, wave, beside).ForMomentsForward(RaiseTo(highest));
  return highest;
}

PhaseBytes WaveBytesInBackward(const ByteShape& shape, const WaveShape& wave, const BesideLayer& beside) {
  PhaseBytes highest;
  Wave(shape, wave, beside).ForMomentsBackward(RaiseTo(highest));
  return highest;
}

int64_t WaveKeptBytes(const ByteShape& shape, const WaveShape& wave) { return Wave(shape, wave, {}).Kept(); }

int64_t ForwardWaveBytes(const ByteShape& shape, const WaveShape& wave, const BesideLayer& beside) {
  int64_t highest = 0;
  Wave(shape, wave, beside).ForForwardMoments([&](int64_t bytes) { highest = std::max(highest, bytes); });
  return highest;
}

}  // namespace stemma
