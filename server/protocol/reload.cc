#include "server/protocol/reload.h"

#include <utility>

#include "common/base/mesh.h"
#include "server/planner/memory_division.h"

namespace stemma::server {

std::optional<absl::StatusOr<LoadedRequest>> Reload::Take(const internal::v1::SpoolFile& file, const ModelConfig& model,
                                                          const PlanInputs& inputs) {
  if (state_ == State::kReading || state_ == State::kPlanning) return std::nullopt;
  if (state_ == State::kNone || name_ != file.name()) {
    Read(file);
    return std::nullopt;
  }
  const bool fits = !loaded_.ok() || (SameMesh(loaded_->mesh, inputs.config.mesh()) &&
                                      PlanProblem(loaded_->plan.report, model, inputs.config).empty());
  if (!fits) {
    Plan(inputs);
    return std::nullopt;
  }
  state_ = State::kNone;
  return std::exchange(loaded_, absl::UnknownError("it was taken"));
}

void Reload::Read(const internal::v1::SpoolFile& file) {
  state_ = State::kReading;
  name_ = file.name();
  id_ = next_id_++;
  out_->Add(LoadAction{.id = id_, .file = file});
}

void Reload::Plan(const PlanInputs& inputs) {
  state_ = State::kPlanning;
  id_ = next_id_++;
  loaded_->mesh = inputs.config.mesh();
  out_->Add(PlanAction{.id = id_, .request = loaded_->request, .config = inputs.config, .rates = inputs.rates});
}

void Reload::OnLoaded(const LoadedEvent& event) {
  if (state_ != State::kReading || event.id != id_) return;
  loaded_ = std::move(*event.loaded);
  state_ = State::kHere;
}

bool Reload::OnPlanned(const PlannedEvent& event) {
  if (event.id < kFirstId) return false;
  if (state_ != State::kPlanning || event.id != id_) return true;
  absl::Status planned = event.plan->status();
  if (planned.ok()) planned = KeepDecidedNumbers(loaded_->plan, **event.plan);
  if (planned.ok()) {
    loaded_->plan = std::move(**event.plan);
  } else {
    loaded_ = std::move(planned);
  }
  state_ = State::kHere;
  return true;
}

}  // namespace stemma::server
