#include "worker/engine/pass_visits.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "worker/schedule/parameter_sweeps.h"

namespace stemma::worker {

void PassVisits::Begin(std::span<const Operation> program, const v1::StepPlan& plan, const RankSizes& sizes,
                       bool forward_only) {
  if (!sharded()) return;
  program_view_ = program;
  units_->BeginPass(ProgramVisits({program.begin(), program.end()}, plan, sizes, weights_.units, forward_only));
}

void PassVisits::BeginOperation(const Operation& operation) const {
  if (sharded()) units_->BeginOperation(static_cast<size_t>(&operation - program_view_.data()));
}

absl::Status PassVisits::InsideOperation(const absl::Status& status) const {
  if (!sharded() || status.ok() || absl::IsUnavailable(status)) return status;
  return absl::UnavailableError(
      absl::StrCat("this rank failed where others gather parameters with it: ", std::string(status.message())));
}

void PassVisits::End() const {
  if (sharded()) units_->EndPass();
}

void PassVisits::Stop(const absl::Status& status) const {
  if (!sharded()) return;
  absl::IsUnavailable(status) ? units_->Break() : units_->StopPass();
}

}  // namespace stemma::worker
