#include "worker/schedule/program.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/cost/cluster_facts.h"

namespace stemma::worker {
namespace {

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
    if (peer >= static_cast<uint32_t>(sizes_.num_copies) || peer == static_cast<uint32_t>(sizes_.copy)) return;
    const int own = sizes_.ProgramRankInCopy(sizes_.copy), other = sizes_.ProgramRankInCopy(static_cast<int>(peer));
    const bool kv = part == PrefixPart::kKv;
    program.push_back({.kind = sends ? OperationKind::kSend : OperationKind::kReceive,
                       .cluster = index_,
                       .exchange = {.ranks = sends ? std::vector<int>{own, other} : std::vector<int>{other, own},
                                    .tensor = absl::StrCat(kv ? "kv" : "gkv", " of group ", group_),
                                    .bytes = rows_ * (kv ? sizes_.kv_row_bytes : sizes_.gradient_row_bytes)},
                       .part = part,
                       .peer_copy = static_cast<int>(peer)});
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
  ClusterOperations(const v1::Cluster& cluster, int index, const RankSizes& sizes)
      : cluster_(cluster), index_(index), sizes_(sizes), waves_(WavesByRank(cluster, sizes.cp_ranks)) {}

  // Lists A: the copy's own prefixes, and what other copies run beyond.
  Program PrefixForward() const {
    Program program;
    if (RunsOwnPrefix(cluster_)) program.push_back(Prefix(OperationKind::kPrefixForward));
    for (int block = NumPrefixBlocks(cluster_, sizes_.prefix_rows); block < joined_blocks(); ++block) {
      program.push_back(JoinPrefix(OperationKind::kJoinPrefixForward, block));
    }
    return program;
  }

  // Lists C. What other copies run beyond comes first: own blocks end with the first, whose layers are then final.
  Program PrefixBackward() const {
    Program program;
    for (int block = NumPrefixBlocks(cluster_, sizes_.prefix_rows); block < joined_blocks(); ++block) {
      const int number = joined_blocks() + block;
      if (cluster_.sweeps().prefix_again()) {
        program.push_back(JoinPrefix(OperationKind::kJoinPrefixForward, number));
      }
      program.push_back(JoinPrefix(OperationKind::kJoinPrefixBackward, number));
    }
    if (RunsOwnPrefix(cluster_)) program.push_back(Prefix(OperationKind::kPrefixBackward));
    return program;
  }

  // Returns how many rounds of waves there are: the most that any context-parallel rank has, or any copy.
  size_t rounds() const { return std::max<size_t>(own_rounds(), std::min(cluster_.sweeps().rounds(), kSweepsMax)); }

  // Lists the forward, or the backward, of this rank's wave in a round. Where it has none it joins in, or does nothing.
  Program Round(size_t round, bool forward) const {
    const std::vector<int>& own = waves_[static_cast<size_t>(sizes_.cp_rank)];
    const int number = static_cast<int>(round);
    const bool cut = round < own.size() && cluster_.waves(own[round]).cut_rows();
    const bool regathered = regathers() && round < own_rounds();
    const Exchange together =
        regathered || cut ? Together(forward ? "round forward" : "round backward", number) : Exchange{};
    if (round < own.size()) {
      return {WithMessages({.kind = forward ? OperationKind::kWaveForward : OperationKind::kWaveBackward,
                            .cluster = index_,
                            .wave = own[round],
                            .exchange = together})};
    }
    const bool joins = regathered || cluster_.has_sweeps();
    if (!joins && forward && sizes_.stages > 1) {
      return {{.kind = OperationKind::kIdle, .cluster = index_, .wave = number}};
    }
    if (!joins) return {};
    return {{.kind = forward ? OperationKind::kJoinForward : OperationKind::kJoinBackward,
             .cluster = index_,
             .wave = number,
             .exchange = together}};
  }

 private:
  bool regathers() const { return RunsOwnPrefix(cluster_) && sizes_.cp_ranks > 1 && cluster_.regather_prefix(); }
  int joined_blocks() const { return static_cast<int>(std::min(cluster_.sweeps().prefix_blocks(), kSweepsMax)); }

  size_t own_rounds() const {
    size_t most = 0;
    for (const std::vector<int>& of_rank : waves_) most = std::max(most, of_rank.size());
    return most;
  }

  Operation Prefix(OperationKind kind) const {
    return WithMessages({.kind = kind, .cluster = index_, .exchange = Together(KindText(kind), 0)});
  }

  Operation JoinPrefix(OperationKind kind, int number) const {
    return {.kind = kind, .cluster = index_, .wave = number};
  }

  // Names what the ranks of a copy run together.
  Exchange Together(const char* what, int round) const {
    if (sizes_.cp_ranks == 1) return {};
    Exchange exchange;
    exchange.tensor = absl::StrCat(what, " ", round, " of cluster ", index_);
    for (int rank = 0; rank < sizes_.cp_ranks; ++rank) {
      exchange.ranks.push_back(sizes_.ProgramRankOf(sizes_.stage, sizes_.copy, rank));
    }
    return exchange;
  }

  // Hidden states go from stage to stage, and their gradients back.
  Operation WithMessages(Operation operation) const {
    const bool forward =
        operation.kind == OperationKind::kPrefixForward || operation.kind == OperationKind::kWaveForward;
    const int from = sizes_.stage + (forward ? -1 : 1), to = sizes_.stage + (forward ? 1 : -1);
    const auto message = [&](int stage) {
      if (stage < 0 || stage >= sizes_.stages) return StageMessage{};
      const bool wave = IsNumbered(operation.kind);
      return StageMessage{sizes_.ProgramRankInStage(stage),
                          absl::StrCat(forward ? "hidden" : "gradient", " of cluster ", index_,
                                       wave ? absl::StrCat(", wave ", operation.wave) : "")};
    };
    operation.input = message(from);
    operation.output = message(to);
    return operation;
  }

  const v1::Cluster& cluster_;
  const int index_;
  const RankSizes& sizes_;
  // By context-parallel rank. CheckContextRanks() refuses a wave of a rank that there is not.
  const std::vector<std::vector<int>> waves_;
};

// A rank's operations in the two orders in which a stage runs them, each entry with its letter: A and F, B and C.
class Sequences {
 public:
  void AddForward(char letter, Program operations) { Add(forward_, letter, std::move(operations)); }
  void AddBackward(char letter, Program operations) { Add(backward_, letter, std::move(operations)); }

  // Takes the next entry of one of the sequences, where it has this letter.
  void Take(char letter, Program& program) {
    std::vector<Entry>& sequence = letter == 'A' || letter == 'F' ? forward_ : backward_;
    size_t& next = letter == 'A' || letter == 'F' ? next_forward_ : next_backward_;
    if (next == sequence.size() || sequence[next].letter != letter) return;
    for (Operation& operation : sequence[next++].operations) program.push_back(std::move(operation));
  }

 private:
  struct Entry {
    char letter;
    Program operations;
  };
  static void Add(std::vector<Entry>& sequence, char letter, Program operations) {
    sequence.push_back({letter, std::move(operations)});
  }

  std::vector<Entry> forward_, backward_;
  size_t next_forward_ = 0, next_backward_ = 0;
};

// Returns the order of this rank's stage; empty: the plan has none.
std::string PlannedOrder(const v1::StepPlan& step, const RankSizes& sizes) {
  for (const v1::CopyStages& copy : step.copies()) {
    if (copy.dp_rank() != static_cast<uint32_t>(sizes.copy) || sizes.stage >= copy.orders_size()) continue;
    return copy.orders(sizes.stage);
  }
  return "";
}

}  // namespace

Program ExpandStep(const v1::StepPlan& step, bool forward_only, const RankSizes& sizes) {
  Sequences sequences;
  std::string order;  // cluster by cluster: all stages have it in a forward-only pass
  for (int c = 0; c < step.clusters_size(); ++c) {
    const ClusterOperations operations(step.clusters(c), c, sizes);
    const ClusterExchanges exchanges(step.clusters(c), c, sizes);
    Program before = operations.PrefixForward(), after;  // the waves
    exchanges.AppendKv(before);
    exchanges.AppendGradients(after);
    for (Operation& operation : operations.PrefixBackward()) after.push_back(std::move(operation));
    const bool has_prefix = !before.empty();
    if (has_prefix) {
      order += 'A';
      sequences.AddForward('A', std::move(before));
    }
    for (size_t round = 0; round < operations.rounds(); ++round) {
      order += forward_only ? "F" : "FB";
      sequences.AddForward('F', operations.Round(round, /*forward=*/true));
      sequences.AddBackward('B', operations.Round(round, /*forward=*/false));
    }
    if (!has_prefix) continue;
    if (!forward_only) order += 'C';
    sequences.AddBackward('C', std::move(after));
  }
  if (sizes.stages > 1 && !forward_only) order = PlannedOrder(step, sizes);
  Program program;
  for (const char letter : order) sequences.Take(letter, program);
  return program;
}

Program ExpandInTurn(const v1::StepPlan& step, bool forward_only, RankSizes sizes) {
  sizes.stages = 1;  // whose order is that of the clusters; ranks are numbered alike
  return ExpandStep(step, forward_only, sizes);
}

}  // namespace stemma::worker
