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
    : options_(options), cluster_(cluster), telling_(options.telling_stages()), beside_(beside) {
  beside_.stages.resize(telling_.size());
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
PhaseBytes WaveCuts::OnStage(size_t telling, const WaveShape& wave) const {
  const size_t stage = telling_[telling];
  const ByteShape& shape = options_.all_stages()[stage];
  const auto& [layer, kept] = beside_.stages[telling];
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
  for (size_t telling = 0; telling < telling_.size(); ++telling) highest.RaiseTo(OnStage(telling, wave));
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

PhaseBytes WaveCuts::Shorten(size_t begin, int64_t bytes, v1::TapePolicy policy, PhaseBytes whole, size_t& count,
                             WaveCut& cut) {
  size_t fits = 1, passes = count;
  PhaseBytes of_fitting, of_passing = whole;
  while (passes - fits > 1) {
    const size_t middle = fits + (passes - fits) / 2;
    const PhaseBytes of_middle = BytesOf(ShapeOf(begin, middle, policy));
    if (of_middle.peak() > bytes) {
      passes = middle;
      of_passing = of_middle;
    } else {
      fits = middle;
      of_fitting = of_middle;
    }
  }
  cut.bytes_max = std::min(cut.bytes_max, of_passing.peak() - 1);
  count = fits;
  return of_fitting;
}

WaveCut WaveCuts::MakeCut(v1::TapePolicy policy, int64_t bytes) {
  WaveCut cut;
  size_t largest = 0;  // the first member of the largest wave; of equally large waves, the first is kept
  const auto raise = [&](size_t begin, const PhaseBytes& wave) {
    const int64_t peak = wave.peak(), highest = cut.largest.peak();
    if (peak < highest || (peak == highest && begin >= largest)) return false;
    cut.largest = wave;
    largest = begin;
    return true;
  };
  std::optional<WaveShape> widest;  // the largest wave that is as the rows worth packing make it
  const auto shorten = [&](size_t begin, size_t& count) {
    WaveShape shape = ShapeOf(begin, count, policy);
    if (widest && Covers(*widest, shape)) return;  // it fits, and decides nothing
    PhaseBytes wave = BytesOf(shape);
    const bool fits = !BytesDecide(options_) || wave.peak() <= bytes;
    if (!fits) wave = Shorten(begin, bytes, policy, wave, count, cut);
    if (count == 1) return;
    if (raise(begin, wave) && fits) widest = std::move(shape);
    if (BytesDecide(options_)) cut.bytes_min = std::max(cut.bytes_min, wave.peak());
  };
  // Members alone in their waves need no bytes to decide anything, so only the longest of alike neighbours is priced.
  std::optional<size_t> longest_alone;
  cut.sizes.reserve(static_cast<size_t>(fewest_.waves));
  size_t count = 0;
  for (size_t begin = 0; begin < cluster_.members.size(); begin += count) {
    count = CountWorthPacking(begin);
    if (count > 1) shorten(begin, count);
    cut.sizes.push_back(static_cast<uint32_t>(count));
    Add(begin, count, cut.passes);
    if (count > 1) continue;
    const MemberShape& member = cluster_.members[begin];
    if (longest_alone && !AreAlike(cluster_.members[*longest_alone], member)) {
      raise(*longest_alone, BytesOf(ShapeOf(*longest_alone, 1, policy)));
      longest_alone.reset();
    }
    if (!longest_alone || member.rows > cluster_.members[*longest_alone].rows) longest_alone = begin;
  }
  if (longest_alone) raise(*longest_alone, BytesOf(ShapeOf(*longest_alone, 1, policy)));
  return cut;
}

const WaveCut& WaveCuts::Cut(v1::TapePolicy policy, int64_t bytes) {
  std::list<WaveCut>& cuts = policies_[policy].cuts;
  for (const WaveCut& cut : cuts) {
    if (cut.bytes_min <= bytes && bytes <= cut.bytes_max) return cut;
  }
  cuts.push_back(MakeCut(policy, bytes));
  return cuts.back();
}

int64_t WaveCuts::LeastBytes(v1::TapePolicy policy) {
  int64_t& least = policies_[policy].least_bytes;
  if (least >= 0) return least;
  least = 0;
  if (!BytesDecide(options_)) return least = Cut(policy, kNoLimit).largest.peak();
  for (const size_t member : largest_members_) least = std::max(least, BytesOf(ShapeOf(member, 1, policy)).peak());
  return least;
}

}  // namespace stemma::server
