// Which weights the model has: the name of their history, the step that they are at, and the histories that were lost.
// Says what is told to requests whose weights are not those. Pure.
//
// Thread safety: none; owned by CoordinatorState.
// Invariants:
//  (1) the step grows by one with each step that is counted, and is 0 at the begin of a lineage.
//  (2) weight_version never falls; it grows with each counted step, with ruined weights and with a new lineage.
//  (3) a name is never used twice, and a lineage that has ended is remembered, the last 64 of them.
//
// Usable -> (a step wrote numbers that are not finite) unusable; either -> (its worker goes) the next lineage, usable.
// Errors: Aborted LINEAGE_MISMATCH, STEP_MISMATCH; FailedPrecondition ROLLED_BACK, NONFINITE_UPDATE.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "server/protocol/request_table.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

struct LostLineage {
  std::string name;
  uint64_t step = 0;  // that its weights had reached
};

class Lineage {
 public:
  // `prefix`: random for each start of the server; lineages are "<prefix>-1", "<prefix>-2", ...
  explicit Lineage(std::string prefix);

  const std::string& name() const { return name_; }
  uint64_t step() const { return step_; }
  uint64_t weight_version() const { return weight_version_; }  // 1: what the model directory holds
  // Why nothing is served though a worker is there; "": its weights are finite.
  const std::string& unusable() const { return unusable_; }

  void CountStep();
  // Marks the weights as unusable: the step being made, of this request, wrote numbers that are not finite into the
  // parameter.
  void Ruin(const std::string& request_id, const std::string& parameter);
  // Returns whether the weights in the worker are others than the model directory's: its loss ends the lineage.
  bool EndsWithItsWorker() const { return step_ > 0 || !unusable_.empty(); }
  // Begins the next lineage at step 0; returns the one that is lost.
  LostLineage End();

  // Says what is lost and where the model is now.
  std::string LostText(const LostLineage& lost) const;
  // Returns what is told to a job that waited or ran when its lineage ended.
  absl::Status LostError(const LostLineage& lost) const;
  // REQUIRES: the record's lineage is lost. Its text says what the request was before, where that is more than open.
  absl::Status RolledBackError(const UpdateRecord& record) const;
  absl::Status UnusableError() const;

  absl::Status CheckName(const std::string& expected) const;
  // Checks what a request expects of the weights that it would start from, at `step`.
  absl::Status CheckExpected(const v1::RequestHeader& header, uint64_t step) const;

 private:
  std::string NextName();
  std::map<std::string, std::string> LostMetadata(const LostLineage& lost) const;

  const std::string prefix_;
  uint64_t lineages_ = 0;
  std::string name_;
  uint64_t step_ = 0;
  uint64_t weight_version_ = 1;
  std::string unusable_;
  std::deque<LostLineage> lost_;  // oldest first
};

}  // namespace stemma::server
