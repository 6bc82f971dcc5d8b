#include "worker/schedule/program.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace stemma::worker {
namespace {

bool IsExchange(OperationKind kind) { return kind >= OperationKind::kSend; }
bool IsJoin(OperationKind kind) { return kind == OperationKind::kJoinForward || kind == OperationKind::kJoinBackward; }
bool IsWave(OperationKind kind) {
  return kind == OperationKind::kWaveForward || kind == OperationKind::kWaveBackward || IsJoin(kind);
}
bool NeedsOthers(const Operation& operation) { return !operation.exchange.ranks.empty(); }

bool BorrowsKv(const Operation& operation) {
  return operation.kind == OperationKind::kReceive && operation.part == PrefixPart::kKv;
}

const char* KindText(OperationKind kind) {
  switch (kind) {
    case OperationKind::kPrefixForward:
      return "PrefixForward";
    case OperationKind::kWaveForward:
      return "WaveForward";
    case OperationKind::kWaveBackward:
      return "WaveBackward";
    case OperationKind::kPrefixBackward:
      return "PrefixBackward";
    case OperationKind::kJoinForward:
      return "JoinForward";
    case OperationKind::kJoinBackward:
      return "JoinBackward";
    case OperationKind::kSend:
      return "Send";
    case OperationKind::kReceive:
      return "Receive";
    case OperationKind::kGather:
      return "Gather";
    case OperationKind::kReduce:
      return "Reduce";
  }
  return "unknown";
}

// One rank's state while its program is checked.
class RankCheck {
 public:
  RankCheck(int rank, const Program& program, bool forward_only)
      : rank_(rank), program_(program), forward_only_(forward_only) {
    for (const Operation& operation : program) {
      if (operation.kind == OperationKind::kPrefixForward || BorrowsKv(operation))
        with_prefix_.insert(operation.cluster);
    }
  }

  bool done() const { return next_ == program_.size(); }
  const Operation& current() const { return program_[next_]; }
  const ProgramPeaks& peaks() const { return peaks_; }

  // Steps over the operation with others that it waits at.
  absl::Status Pass() {
    const std::string problem = IsExchange(current().kind) ? Exchanged(current()) : Step(current());
    if (!problem.empty()) return Error(problem);
    NotePeaks();
    ++next_;
    return absl::OkStatus();
  }

  absl::Status Error(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank_, ", operation ", next_, ", ",
                                                   done() ? "end of program" : OperationText(current()), ": ", what));
  }

  // Runs what needs no other rank, up to the next operation with others or the end.
  absl::Status RunLocal() {
    for (; !done() && !NeedsOthers(current()); ++next_) {
      if (const std::string problem = Step(current()); !problem.empty()) return Error(problem);
      NotePeaks();
    }
    if (!done()) {
      const std::vector<int>& ranks = current().exchange.ranks;
      if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) return Error("this rank is none of its ranks");
      return absl::OkStatus();
    }
    if (!live_waves_.empty()) return Error("the tape of a wave is never consumed");
    if (!live_clusters_.empty() && !forward_only_) return Error("the hot set of a cluster is never consumed");
    return absl::OkStatus();
  }

 private:
  using WaveKey = std::pair<int, int>;

  void NotePeaks() {
    peaks_.live_waves = std::max(peaks_.live_waves, static_cast<int>(live_waves_.size()));
    peaks_.live_clusters = std::max(peaks_.live_clusters, static_cast<int>(live_clusters_.size()));
  }

  // Returns what is wrong with what an exchange does to its cluster's hot set; empty: nothing.
  std::string Exchanged(const Operation& operation) {
    const int cluster = operation.cluster;
    if (operation.part == PrefixPart::kNone) return "";
    if (BorrowsKv(operation)) {
      borrowed_.insert(cluster);
      return live_clusters_.insert(cluster).second ? "" : "its cluster has a hot set already";
    }
    if (operation.part == PrefixPart::kGradients && forward_only_) return "a backward in a forward-only pass";
    if (!live_clusters_.contains(cluster)) return "its cluster has no hot set now";
    const bool helper = operation.part == PrefixPart::kGradients && operation.kind == OperationKind::kSend;
    const bool borrowed = borrowed_.contains(cluster);
    if (helper && !borrowed) return "its cluster's hot set is this rank's own: gK/gV stay";
    if (!helper && borrowed) return "its cluster's hot set is another rank's: that one sends K/V and adds gK/gV";
    return helper ? EndCluster(cluster) : "";
  }

  // Returns what is wrong with running it now; empty: nothing.
  std::string Step(const Operation& operation) {
    if (forward_only_ &&
        (operation.kind == OperationKind::kWaveBackward || operation.kind == OperationKind::kJoinBackward ||
         operation.kind == OperationKind::kPrefixBackward)) {
      return "a backward in a forward-only pass";
    }
    if (!ran_.insert({operation.kind, operation.cluster, IsWave(operation.kind) ? operation.wave : 0}).second) {
      return "it ran before";
    }
    const WaveKey wave = {operation.cluster, operation.wave};
    switch (operation.kind) {
      case OperationKind::kPrefixForward:
        return live_clusters_.insert(operation.cluster).second ? "" : "its cluster has a hot set already";
      case OperationKind::kWaveForward:
        if (with_prefix_.contains(operation.cluster) && !live_clusters_.contains(operation.cluster)) {
          return "its cluster has no hot set now";
        }
        if (!forward_only_) live_waves_.insert(wave);
        return "";
      case OperationKind::kWaveBackward:
        return live_waves_.erase(wave) == 1 ? "" : "its forward has left no tape";
      case OperationKind::kJoinForward:
      case OperationKind::kJoinBackward:
        return live_clusters_.contains(operation.cluster) ? "" : "its cluster has no hot set now";
      default:
        if (borrowed_.contains(operation.cluster))
          return "its cluster's hot set is another rank's: that one runs Phase C";
        return EndCluster(operation.cluster);
    }
  }

  std::string EndCluster(int cluster) {
    for (const auto& [of_cluster, wave] : live_waves_) {
      if (of_cluster == cluster) return absl::StrCat("wave ", wave, " of its cluster still waits for its backward");
    }
    return live_clusters_.erase(cluster) == 1 ? "" : "its cluster has no hot set now";
  }

  const int rank_;
  const Program& program_;
  const bool forward_only_;
  size_t next_ = 0;
  std::set<int> with_prefix_, live_clusters_, borrowed_;
  std::set<WaveKey> live_waves_;
  std::set<std::tuple<OperationKind, int, int>> ran_;
  ProgramPeaks peaks_;
};

// Whether two ranks that are at these operations meet in them.
bool Meets(const Operation& a, const Operation& b) {
  const bool pair = (a.kind == OperationKind::kSend && b.kind == OperationKind::kReceive) ||
                    (a.kind == OperationKind::kReceive && b.kind == OperationKind::kSend);
  const bool same = a.kind == b.kind && (a.kind == OperationKind::kGather || a.kind == OperationKind::kReduce);
  const bool together = !IsExchange(a.kind) && !IsExchange(b.kind);
  return (pair || same || together) && a.exchange == b.exchange;
}

bool AtExchange(const RankCheck& rank) { return !rank.done() && NeedsOthers(rank.current()); }

// Whether all ranks of the exchange that `rank` waits at are there too.
absl::StatusOr<bool> IsComplete(const std::vector<RankCheck>& ranks, const RankCheck& rank) {
  for (const int other : rank.current().exchange.ranks) {
    if (other < 0 || other >= static_cast<int>(ranks.size())) return rank.Error("it names a rank that does not exist");
    const RankCheck& peer = ranks[static_cast<size_t>(other)];
    if (&peer == &rank) continue;
    if (!AtExchange(peer) || !Meets(rank.current(), peer.current())) return false;
  }
  return true;
}

// Lets one complete exchange pass; false: none is.
absl::StatusOr<bool> PassOne(std::vector<RankCheck>& ranks) {
  for (const RankCheck& rank : ranks) {
    if (!AtExchange(rank)) continue;
    const absl::StatusOr<bool> complete = IsComplete(ranks, rank);
    if (!complete.ok()) return complete.status();
    if (!*complete) continue;
    const std::vector<int> members = rank.current().exchange.ranks;
    for (const int member : members) {
      if (absl::Status status = ranks[static_cast<size_t>(member)].Pass(); !status.ok()) return status;
    }
    return true;
  }
  return false;
}

// What ranks that cannot go on wait for.
absl::Status Deadlock(const std::vector<RankCheck>& ranks) {
  std::vector<std::string> waits;
  for (size_t i = 0; i < ranks.size(); ++i) {
    waits.push_back(absl::StrCat("rank ", i, ranks[i].done() ? " has ended" : " waits at ",
                                 ranks[i].done() ? "" : OperationText(ranks[i].current())));
  }
  return absl::InvalidArgumentError("the ranks wait for each other for ever: " + absl::StrJoin(waits, "; "));
}

// The exchanges of one cluster, of one rank; none unless its group is split.
class ClusterExchanges {
 public:
  ClusterExchanges(const v1::Cluster& cluster, int index, const RankSizes& sizes)
      : cluster_(cluster), index_(index), sizes_(sizes) {
    if (cluster.prefix_groups_size() == 0) return;
    group_ = cluster.prefix_groups(0);
    if (group_ < sizes.prefix_rows.size()) rows_ = sizes.prefix_rows[group_];
  }

  void AppendKv(Program& program) const { Append(PrefixPart::kKv, program); }
  void AppendGradients(Program& program) const { Append(PrefixPart::kGradients, program); }

 private:
  void Append(PrefixPart part, Program& program) const {
    if (cluster_.has_owner_rank()) AppendOne(part, cluster_.owner_rank(), /*sends=*/part != PrefixPart::kKv, program);
    for (const uint32_t helper : cluster_.helper_ranks()) {
      AppendOne(part, helper, /*sends=*/part == PrefixPart::kKv, program);
    }
  }

  void AppendOne(PrefixPart part, uint32_t peer, bool sends, Program& program) const {
    if (peer >= static_cast<uint32_t>(sizes_.num_ranks) || peer == static_cast<uint32_t>(sizes_.rank)) return;
    const int own = sizes_.RankInCopy(sizes_.rank), other = sizes_.RankInCopy(static_cast<int>(peer));
    const bool kv = part == PrefixPart::kKv;
    program.push_back({.kind = sends ? OperationKind::kSend : OperationKind::kReceive,
                       .cluster = index_,
                       .exchange = {.ranks = sends ? std::vector<int>{own, other} : std::vector<int>{other, own},
                                    .tensor = absl::StrCat(kv ? "kv" : "gkv", " of group ", group_),
                                    .bytes = rows_ * (kv ? sizes_.kv_row_bytes : sizes_.gradient_row_bytes)},
                       .part = part});
  }

  const v1::Cluster& cluster_;
  const int index_;
  const RankSizes& sizes_;
  uint32_t group_ = 0;
  int64_t rows_ = 0;
};

// What one rank runs of one cluster, beside the exchanges of a split group.
class ClusterOperations {
 public:
  ClusterOperations(const v1::Cluster& cluster, int index, const RankSizes& sizes, bool forward_only)
      : cluster_(cluster), index_(index), sizes_(sizes), forward_only_(forward_only) {}

  bool own_prefix() const { return cluster_.prefix_groups_size() > 0 && !cluster_.has_owner_rank(); }

  void AppendPrefix(OperationKind kind, Program& program) const {
    program.push_back({.kind = kind, .cluster = index_, .exchange = Together(KindText(kind), 0)});
  }

  void AppendWaves(Program& program) const {
    const std::vector<std::vector<int>> waves = WavesOfRanks();
    const std::vector<int>& own = waves[static_cast<size_t>(sizes_.cp_rank)];
    if (!regathers()) {
      for (const int wave : own) AppendWave(wave, {}, {}, program);
      return;
    }
    size_t rounds = 0;
    for (const std::vector<int>& of_rank : waves) rounds = std::max(rounds, of_rank.size());
    for (size_t round = 0; round < rounds; ++round) {
      const int number = static_cast<int>(round);
      const Exchange forward = Together("round forward", number), backward = Together("round backward", number);
      round < own.size()
          ? AppendWave(own[round], forward, backward, program)
          : AppendPair(OperationKind::kJoinForward, OperationKind::kJoinBackward, number, forward, backward, program);
    }
  }

 private:
  bool regathers() const { return own_prefix() && sizes_.cp_ranks > 1 && cluster_.regather_prefix(); }

  // A wave of a rank that there is not is nobody's: CheckContextRanks() refuses such a plan.
  std::vector<std::vector<int>> WavesOfRanks() const {
    std::vector<std::vector<int>> waves(static_cast<size_t>(sizes_.cp_ranks));
    for (int w = 0; w < cluster_.waves_size(); ++w) {
      if (cluster_.waves(w).cp_rank() < waves.size()) waves[cluster_.waves(w).cp_rank()].push_back(w);
    }
    return waves;
  }

  void AppendWave(int wave, const Exchange& forward, const Exchange& backward, Program& program) const {
    AppendPair(OperationKind::kWaveForward, OperationKind::kWaveBackward, wave, forward, backward, program);
  }

  void AppendPair(OperationKind forward_kind, OperationKind backward_kind, int wave, const Exchange& forward,
                  const Exchange& backward, Program& program) const {
    program.push_back({.kind = forward_kind, .cluster = index_, .wave = wave, .exchange = forward});
    if (forward_only_) return;
    program.push_back({.kind = backward_kind, .cluster = index_, .wave = wave, .exchange = backward});
  }

  // Names what the ranks of a copy run together.
  Exchange Together(const char* what, int round) const {
    if (sizes_.cp_ranks == 1) return {};
    Exchange exchange;
    exchange.tensor = absl::StrCat(what, " ", round, " of cluster ", index_);
    for (int rank = 0; rank < sizes_.cp_ranks; ++rank) exchange.ranks.push_back(sizes_.rank * sizes_.cp_ranks + rank);
    return exchange;
  }

  const v1::Cluster& cluster_;
  const int index_;
  const RankSizes& sizes_;
  const bool forward_only_;
};

}  // namespace

Program ExpandStep(const v1::StepPlan& step, bool forward_only, const RankSizes& sizes) {
  Program program;
  for (int c = 0; c < step.clusters_size(); ++c) {
    const v1::Cluster& cluster = step.clusters(c);
    const ClusterOperations operations(cluster, c, sizes, forward_only);
    const ClusterExchanges exchanges(cluster, c, sizes);
    if (operations.own_prefix()) operations.AppendPrefix(OperationKind::kPrefixForward, program);
    exchanges.AppendKv(program);
    operations.AppendWaves(program);
    if (forward_only) continue;
    exchanges.AppendGradients(program);
    if (operations.own_prefix()) operations.AppendPrefix(OperationKind::kPrefixBackward, program);
  }
  return program;
}

std::string OperationText(const Operation& operation) {
  if (IsExchange(operation.kind)) {
    return absl::StrCat(KindText(operation.kind), "(\"", operation.exchange.tensor, "\", ", operation.exchange.bytes,
                        " bytes, ranks ", absl::StrJoin(operation.exchange.ranks, " "), ")");
  }
  return absl::StrCat(KindText(operation.kind), "(cluster ", operation.cluster,
                      IsWave(operation.kind) ? absl::StrCat(", wave ", operation.wave) : "", ")");
}

absl::StatusOr<std::vector<ProgramPeaks>> CheckPrograms(const std::vector<Program>& ranks, bool forward_only) {
  std::vector<RankCheck> checks;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    checks.emplace_back(static_cast<int>(rank), ranks[rank], forward_only);
  }
  for (bool passed = true; passed;) {
    for (RankCheck& check : checks) {
      if (absl::Status status = check.RunLocal(); !status.ok()) return status;
    }
    absl::StatusOr<bool> one = PassOne(checks);
    if (!one.ok()) return one.status();
    passed = *one;
  }
  std::vector<ProgramPeaks> peaks;
  for (const RankCheck& check : checks) {
    if (!check.done()) return Deadlock(checks);
    peaks.push_back(check.peaks());
  }
  return peaks;
}

}  // namespace stemma::worker
