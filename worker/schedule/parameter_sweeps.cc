#include "worker/schedule/parameter_sweeps.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/cost/cluster_facts.h"

namespace stemma::worker {
namespace {

// Returns what is wrong with a cluster; empty: nothing.
std::string Problem(const v1::Cluster& cluster, const RankSizes& sizes, bool sharded) {
  if (!sharded) return cluster.has_sweeps() ? "sweeps are set: parameters are whole" : "";
  if (!cluster.has_sweeps()) return "sweeps are missing: parameters are sharded";
  const v1::ParameterSweeps& sweeps = cluster.sweeps();
  for (const auto& [field, number] :
       {std::pair("prefix_blocks", sweeps.prefix_blocks()), {"rounds", sweeps.rounds()}}) {
    if (number > kSweepsMax) return absl::StrCat("sweeps.", field, " is ", number, ": at most ", kSweepsMax);
  }
  const auto blocks = static_cast<uint32_t>(NumPrefixBlocks(cluster, sizes.prefix_rows));
  if (blocks > sweeps.prefix_blocks()) {
    return absl::StrCat("sweeps.prefix_blocks is ", sweeps.prefix_blocks(), ": this copy runs ", blocks);
  }
  if (RunsOwnPrefix(cluster) && cluster.prefix_policy() == v1::S5 && !sweeps.prefix_again()) {
    return "sweeps.prefix_again is not set: prefix_policy is S5";
  }
  const auto waves = static_cast<uint32_t>(RoundsOfWaves(cluster, sizes.cp_ranks));
  return waves > sweeps.rounds() ? absl::StrCat("sweeps.rounds is ", sweeps.rounds(), ": this copy has ", waves) : "";
}

class Visits {
 public:
  Visits(const v1::StepPlan& step, const RankSizes& sizes, const ParameterUnits& units, bool forward_only)
      : step_(step), sizes_(sizes), units_(units), forward_only_(forward_only) {}

  std::vector<UnitVisit> Of(const Operation& operation) const {
    std::vector<UnitVisit> visits;
    const v1::Cluster& cluster = step_.clusters(operation.cluster);
    switch (operation.kind) {
      case OperationKind::kPrefixForward:
        for (int block = 0; block < NumPrefixBlocks(cluster, sizes_.prefix_rows); ++block) Add(Sweep::kPrefix, visits);
        break;
      case OperationKind::kPrefixBackward:
        for (int block = 0; block < NumPrefixBlocks(cluster, sizes_.prefix_rows); ++block) {
          if (cluster.sweeps().prefix_again()) Add(Sweep::kPrefix, visits);
          Add(Sweep::kBackward, visits);
        }
        break;
      case OperationKind::kJoinPrefixForward:
        Add(Sweep::kPrefix, visits);
        break;
      case OperationKind::kWaveForward:
      case OperationKind::kJoinForward:
        Add(Sweep::kWave, visits);
        break;
      case OperationKind::kWaveBackward:
      case OperationKind::kJoinBackward:
      case OperationKind::kJoinPrefixBackward:
        Add(Sweep::kBackward, visits);
        break;
      default:
        break;
    }
    return visits;
  }

 private:
  void Add(Sweep sweep, std::vector<UnitVisit>& visits) const {
    for (const UnitVisit& visit : VisitsOf(units_, sweep, forward_only_)) visits.push_back(visit);
  }

  const v1::StepPlan& step_;
  const RankSizes& sizes_;
  const ParameterUnits& units_;
  const bool forward_only_;
};

}  // namespace

absl::Status CheckParameterSweeps(const v1::StepPlan& step, const RankSizes& sizes, bool sharded) {
  if (step.reduce_gradients_once() && !sharded) {
    return absl::InvalidArgumentError("reduce_gradients_once is set: parameters are whole");
  }
  for (int c = 0; c < step.clusters_size(); ++c) {
    const std::string problem = Problem(step.clusters(c), sizes, sharded);
    if (!problem.empty()) return absl::InvalidArgumentError(absl::StrCat("cluster ", c, ": ", problem));
  }
  return absl::OkStatus();
}

OperationVisits ProgramVisits(const Program& program, const v1::StepPlan& step, const RankSizes& sizes,
                              const ParameterUnits& units, bool forward_only) {
  const Visits visits(step, sizes, units, forward_only);
  OperationVisits of_operations;
  for (const Operation& operation : program) of_operations.push_back(visits.Of(operation));
  if (step.reduce_gradients_once()) ReduceOnce(of_operations);
  return of_operations;
}

}  // namespace stemma::worker
