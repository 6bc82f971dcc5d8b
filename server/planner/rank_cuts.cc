#include "server/planner/rank_cuts.h"

#include <algorithm>
#include <numeric>

namespace stemma::server {

int64_t Rounds(const WavesOfRanks& waves) {
  int64_t rounds = 0;
  for (const WavePasses& of_rank : waves) rounds = std::max(rounds, of_rank.waves);
  return rounds;
}

int64_t NumWaves(const WavesOfRanks& waves) {
  int64_t number = 0;
  for (const WavePasses& of_rank : waves) number += of_rank.waves;
  return number;
}

WavesOfRanks RankCut::waves() const {
  WavesOfRanks waves;
  for (const WaveCut* cut : of_ranks) waves.push_back(cut->passes);
  return waves;
}

const PhaseBytes& RankCut::largest() const {
  const auto smaller = [](const WaveCut* a, const WaveCut* b) { return a->largest.peak() < b->largest.peak(); };
  return (*std::max_element(of_ranks.begin(), of_ranks.end(), smaller))->largest;
}

RankCuts::RankCuts(const MemoryOptions& options, const ClusterShape& cluster, const std::vector<uint32_t>& dealt)
    : options_(options), cluster_(cluster), dealt_(dealt) {
  if (!dealt.empty()) {
    of_ranks_.resize(static_cast<size_t>(options.shape.cp));
    for (const MemberShape& member : cluster.members) {
      if (!member.is_cut()) continue;
      ++num_cut_;
      for (ClusterShape& members : of_ranks_) members.members.push_back(member);
    }
    for (size_t i = 0; i < dealt.size(); ++i) {
      if (!cluster.members[i].is_cut()) of_ranks_[dealt[i]].members.push_back(cluster.members[i]);
    }
  }
  for (const WaveCuts& cuts : RanksOf({})) {
    fewest_.push_back(cuts.fewest());
    least_.push_back(cuts.least());
  }
}

RankCuts::OfBeside& RankCuts::Of(const BesideWave& beside) {
  for (OfBeside& known : cuts_) {
    if (known.beside == beside) return known;
  }
  OfBeside& made = cuts_.emplace_back();
  made.beside = beside;
  return made;
}

std::list<WaveCuts>& RankCuts::RanksOf(const BesideWave& beside) {
  std::list<WaveCuts>& ranks = Of(beside).ranks;
  if (!ranks.empty()) return ranks;
  if (of_ranks_.empty()) ranks.emplace_back(options_, cluster_, beside);
  for (const ClusterShape& members : of_ranks_) ranks.emplace_back(options_, members, beside);
  return ranks;
}

RankCut RankCuts::Cut(v1::TapePolicy policy, int64_t bytes, const BesideWave& beside) {
  RankCut cut;
  for (WaveCuts& cuts : RanksOf(beside)) cut.of_ranks.push_back(&cuts.Cut(policy, bytes));
  return cut;
}

int64_t RankCuts::LeastBytes(v1::TapePolicy policy, const BesideWave& beside) {
  // Where bytes decide, the least are those of one member alone, whichever rank has it: of all ranks' members few need
  // to be asked.
  if (of_ranks_.empty() || !WaveCuts::BytesDecide(options_)) {
    int64_t least = 0;
    for (WaveCuts& cuts : RanksOf(beside)) least = std::max(least, cuts.LeastBytes(policy));
    return least;
  }
  OfBeside& of_beside = Of(beside);
  if (!of_beside.all) of_beside.all.emplace(options_, cluster_, beside);
  return of_beside.all->LeastBytes(policy);
}

std::vector<uint32_t> RankCuts::MemberOrder() const {
  std::vector<uint32_t> order(dealt_.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto place = [&](uint32_t member) {
    return cluster_.members[member].is_cut() ? int64_t{-1} : static_cast<int64_t>(dealt_[member]);
  };
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return place(a) < place(b); });
  return order;
}

int64_t RankCuts::waves_priced() const {
  int64_t waves = 0;
  for (const OfBeside& of_beside : cuts_) {
    for (const WaveCuts& cuts : of_beside.ranks) waves += cuts.waves_priced();
    if (of_beside.all) waves += of_beside.all->waves_priced();
  }
  return waves;
}

}  // namespace stemma::server
