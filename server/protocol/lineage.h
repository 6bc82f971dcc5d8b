// Which weights the model has: the name of their history, the step that they are at, and the histories that were lost.
// Says what is told to requests whose weights are not those. Pure.
//
// Every generation of workers begins with the weights of a checkpoint or of the model directory (WeightsBase). Where
// requests are kept, the steps since then are computed again, and until that is done the ranks' weights are behind the
// lineage's step.
//
// Thread safety: none; owned by CoordinatorState.
// Invariants:
//  (1) the step grows by one with each step that is counted; a lineage begins at the step of its first weights.
//  (2) weight_version never falls; it grows with each counted step, with ruined weights and with a new lineage.
//  (3) a name is never used twice, and a lineage that has ended is remembered, the last 64 of them. One that goes on
//      under a new name loses nothing: who expects an earlier name of it expects it.
//  (4) weights_step() <= step().
//  (5) losses of workers in decided steps are in a row until the furthest of those steps is made, or the lineage ends.
//
// Usable -> (a step wrote numbers that are not finite) unusable; either -> (its worker goes) the next lineage, usable.
// Usable -> (what is kept cannot be read, or computed again) unusable, until the server is started again.
// Errors: Aborted LINEAGE_MISMATCH, STEP_MISMATCH; FailedPrecondition ROLLED_BACK, NONFINITE_UPDATE; DataLoss;
// InvalidArgument - the lineage that is expected could be none.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/error_reasons.h"
#include "server/protocol/checkpoint_rules.h"
#include "server/protocol/request_table.h"
#include "stemma/internal/v1/journal.pb.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

inline constexpr int kLostLineagesMax = 64;
inline constexpr int kFormerLineagesMax = 1000;  // names of one lineage: on a GPU every recovery gives other bits

struct LostLineage {
  std::string name;
  std::vector<std::string> former = {};  // its earlier names
  uint64_t step = 0;                     // that its weights had reached
  WeightsBase went_on = {};              // with which the next lineage began
  uint64_t shared_step = 0;              // up to which those weights came by the steps of this lineage
};

class Lineage {
 public:
  // `prefix`: random for each start of the server; lineages are "<prefix>-1", "<prefix>-2", ...
  // `state`: of earlier servers; goes on with the lineage that is in it, if there is one.
  explicit Lineage(std::string prefix, const internal::v1::JournalState& state = {});

  const std::string& name() const { return name_; }
  uint64_t step() const { return step_; }
  uint64_t weight_version() const { return weight_version_; }  // 1: what the model directory holds
  // Why nothing is served though a worker is there; "": its weights are finite.
  const std::string& unusable() const { return unusable_; }

  // The step of the weights that the ranks have.
  uint64_t weights_step() const { return weights_step_; }
  // Whether steps have to be computed again before the weights are the lineage's.
  bool behind() const { return weights_step_ < step_; }
  // A generation begins, with weights of this step.
  void BeginGeneration(uint64_t step) { weights_step_ = step; }
  // Begins the first lineage of a journal with an earlier one's weights. REQUIRES: nothing was counted.
  void BeginWith(const internal::v1::KnownCheckpoint& checkpoint);

  // REQUIRES: not behind.
  void CountStep();
  // Counts a step that was computed again. REQUIRES: behind.
  void CountStepAgain();
  // The steps that were computed again have other bits than before: the lineage goes on under a new name, which is
  // returned.
  const std::string& Rename();
  // Counts that workers were lost in the decided step after weights_step(). Returns how often in a row they were: since
  // they last got beyond the furthest step that has cost some.
  uint32_t CountLossAgain();
  // Marks the weights as unusable: the step being made, of this request, wrote numbers that are not finite into the
  // parameter.
  void Ruin(const std::string& request_id, const std::string& parameter);
  // Marks the weights as unusable, because of what cannot be read or computed again: an error of ours.
  void Stop(const absl::Status& why);
  // Begins the next lineage with these weights; returns the one that is lost.
  LostLineage End(const WeightsBase& base);

  // Says what is lost and where the model is now.
  std::string LostText(const LostLineage& lost) const;
  // Returns what is told to a job that waited or ran when its lineage ended.
  absl::Status LostError(const LostLineage& lost) const;
  // REQUIRES: the record's lineage is lost. Its text says what the request was before, where that is more than open.
  absl::Status RolledBackError(const UpdateRecord& record) const;
  absl::Status UnusableError() const;

  // Checks that the model has this lineage, under whichever of its names.
  absl::Status CheckName(const std::string& expected) const;
  // Whether the model went from this lineage to that checkpoint and has made no step since: loading it is done.
  bool WentFrom(const std::string& lineage, const internal::v1::KnownCheckpoint& checkpoint) const;
  // Checks what a request expects of the weights that it would start from, at `step`.
  absl::Status CheckExpected(const v1::RequestHeader& header, uint64_t step) const;

 private:
  std::string NextName();
  void ReachStep();
  std::map<std::string, std::string> LostMetadata(const LostLineage& lost) const;

  const std::string prefix_;
  uint64_t lineages_ = 0;
  std::string name_;
  std::vector<std::string> former_;  // its earlier names, oldest first
  uint64_t step_ = 0, weights_step_ = 0;
  uint64_t lost_in_step_ = 0;  // the furthest of those in which workers were lost in a row; 0: none were
  uint32_t losses_again_ = 0;  // those in a row
  uint64_t weight_version_ = 1;
  std::string unusable_;
  Reason unusable_reason_ = Reason::kNonfiniteUpdate;  // while unusable_ says something
  std::deque<LostLineage> lost_;                       // oldest first
};

}  // namespace stemma::server
