#include "tests/testing/program_check.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace stemma::testing {
namespace {

bool NeedsOthers(const Operation& operation) { return !operation.exchange.ranks.empty() || operation.input.exists(); }

bool BorrowsKv(const Operation& operation) {
  return operation.kind == OperationKind::kReceive && operation.part == PrefixPart::kKv;
}

// Messages between stages that were sent and not received, by sender and receiver.
using Messages = std::map<std::pair<int, int>, std::deque<std::string>>;

// One rank's state while its program is checked.
class RankCheck {
 public:
  RankCheck(int rank, const Program& program, bool forward_only, Messages& messages)
      : rank_(rank), program_(program), forward_only_(forward_only), messages_(messages) {
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
    std::string problem = TakeInput();
    if (problem.empty()) problem = IsExchange(current().kind) ? Exchanged(current()) : Step(current());
    if (!problem.empty()) return Error(problem);
    NotePeaks();
    ++next_;
    return absl::OkStatus();
  }

  // Whether what the operation receives of another stage has been sent.
  bool InputIsHere() const {
    if (!current().input.exists()) return true;
    const auto found = messages_.find({current().input.rank, rank_});
    return found != messages_.end() && !found->second.empty();
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
      if (ranks.empty()) return absl::OkStatus();
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

  // Returns what is wrong with the message that the operation receives; empty: nothing.
  std::string TakeInput() {
    const StageMessage& input = current().input;
    if (!input.exists()) return "";
    std::deque<std::string>& from = messages_[{input.rank, rank_}];
    const std::string sent = std::move(from.front());
    from.pop_front();
    return sent == input.tensor ? "" : absl::StrCat("it receives ", input.tensor, ", and ", sent, " was sent");
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
    if (operation.output.exists()) messages_[{rank_, operation.output.rank}].push_back(operation.output.tensor);
    if (forward_only_ &&
        (operation.kind == OperationKind::kWaveBackward || operation.kind == OperationKind::kJoinBackward ||
         operation.kind == OperationKind::kJoinPrefixBackward || operation.kind == OperationKind::kPrefixBackward)) {
      return "a backward in a forward-only pass";
    }
    if (!ran_.insert({operation.kind, operation.cluster, IsNumbered(operation.kind) ? operation.wave : 0}).second) {
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
      case OperationKind::kIdle:
        return "";
      case OperationKind::kJoinForward:
      case OperationKind::kJoinBackward:
        if (operation.exchange.ranks.empty()) return "";  // of other copies
        return live_clusters_.contains(operation.cluster) ? "" : "its cluster has no hot set now";
      case OperationKind::kJoinPrefixForward:
      case OperationKind::kJoinPrefixBackward:
        return "";
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
  Messages& messages_;
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

// Whether all ranks of the exchange that `rank` waits at are there too, with what they receive of other stages.
absl::StatusOr<bool> IsComplete(const std::vector<RankCheck>& ranks, const RankCheck& rank) {
  if (!rank.InputIsHere()) return false;
  for (const int other : rank.current().exchange.ranks) {
    if (other < 0 || other >= static_cast<int>(ranks.size())) return rank.Error("it names a rank that does not exist");
    const RankCheck& peer = ranks[static_cast<size_t>(other)];
    if (&peer == &rank) continue;
    if (!AtExchange(peer) || !Meets(rank.current(), peer.current()) || !peer.InputIsHere()) return false;
  }
  return true;
}

// Lets one operation pass whose ranks are all there; false: there is none.
absl::StatusOr<bool> PassOne(std::vector<RankCheck>& ranks) {
  for (RankCheck& rank : ranks) {
    if (!AtExchange(rank)) continue;
    const absl::StatusOr<bool> complete = IsComplete(ranks, rank);
    if (!complete.ok()) return complete.status();
    if (!*complete) continue;
    const std::vector<int> others = rank.current().exchange.ranks;
    std::vector<RankCheck*> members;
    for (const int member : others) members.push_back(&ranks[static_cast<size_t>(member)]);
    if (members.empty()) members.push_back(&rank);
    for (RankCheck* const member : members) {
      if (absl::Status status = member->Pass(); !status.ok()) return status;
    }
    return true;
  }
  return false;
}

absl::Status CheckNothingIsLeft(const Messages& messages) {
  for (const auto& [ranks, left] : messages) {
    if (left.empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", ranks.second, " never receives ", left.front(), ", which rank ", ranks.first, " sends"));
  }
  return absl::OkStatus();
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

}  // namespace

absl::StatusOr<std::vector<ProgramPeaks>> CheckPrograms(const std::vector<Program>& ranks, bool forward_only) {
  Messages messages;
  std::vector<RankCheck> checks;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    checks.emplace_back(static_cast<int>(rank), ranks[rank], forward_only, messages);
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
  if (absl::Status status = CheckNothingIsLeft(messages); !status.ok()) return status;
  return peaks;
}

}  // namespace stemma::testing
