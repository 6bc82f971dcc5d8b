#include "server/planner/wave_cuts.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace stemma::server {
namespace {

WaveRun RunOf(const MemberShape& member) {
  const int64_t own_prefix = member.dense ? member.prefix_rows : 0, rows = own_prefix + member.rows;
  return {.rows = rows,
          .longest_rows = rows,
          .ancestor_rows = member.dense ? 0 : member.prefix_rows,
          .kv_only_rows = own_prefix};
}

// Whether neighbours in a wave attend in one call in every layer.
bool ShareACall(const MemberShape& a, const MemberShape& b) {
  if (a.is_cut() || b.is_cut()) return false;
  if (a.dense || b.dense) return a.dense && b.dense && a.prefix_rows == 0 && b.prefix_rows == 0;
  return a.prefix == b.prefix;
}

void Join(const WaveRun& next, WaveRun& run) {
  run.rows += next.rows;
  run.longest_rows = std::max(run.longest_rows, next.longest_rows);
  run.padded_members += next.padded_members;
}

// Whether a wave of `a` alone needs at least what a wave of `b` alone does.
bool NeedsAtLeast(const MemberShape& a, const MemberShape& b) {
  return a.dense == b.dense && a.cut_ranks == b.cut_ranks && a.rows >= b.rows && a.prefix_rows >= b.prefix_rows;
}

// Whether waves of each alone differ in their rows at most: the longer one then needs more.
bool AreAlike(const MemberShape& a, const MemberShape& b) {
  return a.dense == b.dense && a.cut_ranks == b.cut_ranks && a.prefix_rows == b.prefix_rows;
}

// The largest part of a rollout that ranks share. Its runs are the pieces of all of them, of which one rank has two.
WaveShape CutWave(const MemberShape& member, v1::TapePolicy policy) {
  WaveShape wave = {
      .rows = member.own_rows(), .policy = policy, .cut_rows = member.rows, .cut_prefix_rows = member.prefix_rows};
  for (const ContextPiece& piece : DealCutRows(member.rows, member.cut_ranks)) {
    AddRun({.rows = piece.rows(), .longest_rows = piece.rows(), .ancestor_rows = member.prefix_rows + piece.begin},
           wave);
  }
  return wave;
}

}  // namespace

WaveShape WaveOf(std::span<const MemberShape> members, v1::WaveLayout layout, v1::TapePolicy policy) {
  if (members.size() == 1 && members[0].is_cut()) return CutWave(members[0], policy);
  WaveShape wave = {.policy = policy};
  const bool padded = layout == v1::PADDED;
  WaveRun run, below;
  for (size_t i = 0; i < members.size(); ++i) {
    const MemberShape& member = members[i];
    WaveRun one = RunOf(member);
    one.padded_members = padded ? 1 : 0;
    wave.rows += one.rows;
    wave.kv_only_rows += one.kv_only_rows;
    const MemberShape* before = i > 0 ? &members[i - 1] : nullptr;
    if (before != nullptr && ShareACall(*before, member)) {
      Join(one, run);
    } else {
      if (before != nullptr) AddRun(run, wave);
      run = one;
    }
    if (!padded || !member.dense) continue;
    // Without an ancestor all neighbours are one call; in the last layer the rows set apart are their ancestors.
    one.kv_only_rows = 0;
    one.only_below = true;
    if (before != nullptr && before->dense) {
      Join(one, below);
    } else {
      below = one;
    }
    if (below.padded_members > 1) AddRun(below, wave);
  }
  AddRun(run, wave);
  return wave;
}

WaveCuts::WaveCuts(const MemoryOptions& options, const ClusterShape& cluster, const BesideWave& beside)
    : options_(options), cluster_(cluster), candidates_(options.candidate_stages()), beside_(beside) {
  beside_.stages.resize(candidates_.size());
  const std::vector<MemberShape>& members = cluster.members;
  for (size_t begin = 0, count = 0; begin < members.size(); begin += count) {
    count = CountWorthPacking(begin);
    Add(begin, count, fewest_);
  }
  least_ = LeastPasses(options.shape, members, fewest_.waves);
  for (size_t i = 0; i < members.size(); ++i) {
    const auto covered = [&](size_t other) { return NeedsAtLeast(members[other], members[i]); };
    if (std::any_of(largest_members_.begin(), largest_members_.end(), covered)) continue;
    std::erase_if(largest_members_, [&](size_t other) { return NeedsAtLeast(members[i], members[other]); });
    largest_members_.push_back(i);
  }
}

void WaveCuts::Add(size_t begin, size_t count, WavePasses& passes) const {
  AddWave(options_.shape, std::span(cluster_.members).subspan(begin, count), passes);
}

// Counts a wave on one stage; where there are several, with what the prefixes and the other waves in flight keep. Those
// are as large at most.
PhaseBytes WaveCuts::OnStage(size_t candidate, const WaveShape& wave) const {
  const size_t stage = candidates_[candidate];
  const ByteShape& shape = options_.all_stages()[stage];
  const auto& [layer, kept] = beside_.stages[candidate];
  PhaseBytes bytes = kept;
  if (options_.forward_only) {
    bytes.working_set = ForwardWaveBytes(shape, wave, layer);
    return bytes;
  }
  const PhaseBytes of_wave = WaveBytes(shape, wave, layer);
  bytes.wave_tape = of_wave.wave_tape;
  bytes.working_set = of_wave.working_set;
  const int64_t others = options_.rounds_in_flight_on(stage) - 1;
  if (others > 0) bytes.wave_tape += others * WaveKeptBytes(shape, wave);
  return bytes;
}

WaveShape WaveCuts::ShapeOf(size_t begin, size_t count, v1::TapePolicy policy) const {
  return WaveOf(std::span(cluster_.members).subspan(begin, count), options_.layout, policy);
}

PhaseBytes WaveCuts::BytesOf(const WaveShape& wave) {
  ++waves_priced_;
  PhaseBytes highest;
  for (size_t candidate = 0; candidate < candidates_.size(); ++candidate) highest.RaiseTo(OnStage(candidate, wave));
  return highest;
}

size_t WaveCuts::CountWorthPacking(size_t begin) const {
  const size_t left = cluster_.members.size() - begin;
  if (options_.layout == v1::ONE_BY_ONE || cluster_.members[begin].is_cut()) return 1;
  if (options_.wave_suffixes > 0) return std::min(left, static_cast<size_t>(options_.wave_suffixes));
  int64_t rows = 0;
  size_t count = 0;
  for (; count < left; ++count) {
    rows += RunOf(cluster_.members[begin + count]).rows;
    if (count > 0 && rows > options_.wave_rows) break;
  }
  return count;
}

const PhaseBytes& WaveCuts::BytesAlone(size_t member, v1::TapePolicy policy) {
  std::list<Alone>& known = policies_[policy].alone;
  for (const Alone& alone : known) {
    if (alone.member == member) return alone.bytes;
  }
  known.push_back({member, BytesOf(ShapeOf(member, 1, policy))});
  return known.back().bytes;
}

const PhaseBytes& WaveCuts::LargestAlone(v1::TapePolicy policy) {
  std::optional<PhaseBytes>& largest = policies_[policy].largest_alone;
  if (largest) return *largest;
  largest.emplace();
  for (const size_t member : largest_members_) {
    const PhaseBytes& bytes = BytesAlone(member, policy);
    if (bytes.peak() > largest->peak()) largest = bytes;
  }
  return *largest;
}

// Bytes are asked for as seldom as the answer allows: a wave that the largest one covers fits, one that covers a wave
// which passes the bytes passes them, and neither decides anything.
class WaveCuts::CutMaker {
 public:
  CutMaker(WaveCuts& cuts, v1::TapePolicy policy, int64_t bytes) : cuts_(cuts), policy_(policy), bytes_(bytes) {}

  WaveCut Make() {
    const size_t members = cuts_.cluster_.members.size();
    cut_.sizes.reserve(static_cast<size_t>(cuts_.fewest_.waves));
    size_t count = 0;
    for (size_t begin = 0; begin < members; begin += count) {
      count = cuts_.CountWorthPacking(begin);
      if (count > 1) {
        if (!Fits(begin, count)) {
          if (NoneFits()) return None();
          count = LongestThatFits(begin, count);
        }
        Accept(begin);
      }
      cut_.sizes.push_back(static_cast<uint32_t>(count));
      cuts_.Add(begin, count, cut_.passes);
      if (count == 1) AddAlone(begin);
    }
    if (longest_alone_) RaiseTo(*longest_alone_, cuts_.BytesAlone(*longest_alone_, policy_));
    if (BytesDecide(cuts_.options_)) {
      if (cut_.largest.peak() > bytes_) return None();
      cut_.bytes_min = cut_.largest.peak();
    }
    return std::move(cut_);
  }

 private:
  // Tells whether a member alone passes the bytes. It is asked when a wave passes them, for a cut is then made in vain.
  bool NoneFits() { return cuts_.LargestAlone(policy_).peak() > bytes_; }

  WaveCut None() {
    WaveCut none;
    none.largest = cuts_.LargestAlone(policy_);
    none.bytes_max = none.largest.peak() - 1;
    return none;
  }

  // Returns the members of the longest wave from `begin` on that fits, less than `passes`.
  size_t LongestThatFits(size_t begin, size_t passes) {
    size_t fits = 1;
    std::optional<Tried> longest;
    while (passes - fits > 1) {
      const size_t middle = fits + (passes - fits) / 2;
      if (Fits(begin, middle)) {
        fits = middle;
        longest = std::move(tried_);
      } else {
        passes = middle;
      }
    }
    tried_ = std::move(longest);
    return fits;
  }

  bool Fits(size_t begin, size_t count) {
    WaveShape shape = cuts_.ShapeOf(begin, count, policy_);
    tried_.reset();
    if (largest_shape_ && Covers(*largest_shape_, shape)) return true;
    if (passing_ && Covers(shape, *passing_)) return false;
    const PhaseBytes bytes = cuts_.BytesOf(shape);
    const bool fits = !BytesDecide(cuts_.options_) || bytes.peak() <= bytes_;
    if (fits) {
      tried_ = {std::move(shape), bytes};
    } else if (bytes.peak() <= cut_.bytes_max) {
      cut_.bytes_max = bytes.peak() - 1;
      passing_ = std::move(shape);
    }
    return fits;
  }

  // Takes the wave that was seen to fit last, unless its bytes were not asked for.
  void Accept(size_t begin) {
    if (!tried_) return;
    if (RaiseTo(begin, tried_->bytes)) largest_shape_ = std::move(tried_->shape);
  }

  // Members alone in their waves need no bytes to decide anything, so only the longest of alike neighbours is priced.
  void AddAlone(size_t member) {
    const std::vector<MemberShape>& members = cuts_.cluster_.members;
    if (longest_alone_ && !AreAlike(members[*longest_alone_], members[member])) {
      RaiseTo(*longest_alone_, cuts_.BytesAlone(*longest_alone_, policy_));
      longest_alone_.reset();
    }
    if (!longest_alone_ || members[member].rows > members[*longest_alone_].rows) longest_alone_ = member;
  }

  // Returns whether this is the largest wave so far; of equally large ones the first is kept.
  bool RaiseTo(size_t begin, const PhaseBytes& wave) {
    const int64_t peak = wave.peak(), highest = cut_.largest.peak();
    if (peak < highest || (peak == highest && begin >= largest_)) return false;
    cut_.largest = wave;
    largest_ = begin;
    return true;
  }

  struct Tried {
    WaveShape shape;
    PhaseBytes bytes;
  };

  WaveCuts& cuts_;
  const v1::TapePolicy policy_;
  const int64_t bytes_;
  WaveCut cut_;
  size_t largest_ = 0;                      // the first member of the largest wave
  std::optional<WaveShape> largest_shape_;  // of the largest wave of several members
  std::optional<WaveShape> passing_;        // the smallest wave that was seen to pass the bytes
  std::optional<Tried> tried_;              // the last wave that was seen to fit, if its bytes were asked for
  std::optional<size_t> longest_alone_;
};

const WaveCut& WaveCuts::Cut(v1::TapePolicy policy, int64_t bytes) {
  std::list<WaveCut>& cuts = policies_[policy].cuts;
  for (const WaveCut& cut : cuts) {
    if (cut.bytes_min <= bytes && bytes <= cut.bytes_max) return cut;
  }
  cuts.push_back(CutMaker(*this, policy, bytes).Make());
  return cuts.back();
}

int64_t WaveCuts::LeastBytes(v1::TapePolicy policy) {
  const PhaseBytes& largest = BytesDecide(options_) ? LargestAlone(policy) : Cut(policy, kNoLimit).largest;
  return largest.peak();
}

}  // namespace stemma::server
