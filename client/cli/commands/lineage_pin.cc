#include "client/cli/commands/lineage_pin.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/output/command_status.h"
#include "common/base/error.h"

namespace stemma::cli {
namespace {

bool IsLost(const absl::Status& error) {
  return HasReason(error, Reason::kRolledBack) || HasReason(error, Reason::kLineageMismatch);
}

}  // namespace

void LineagePin::Begin(const v1::ModelInfo& model) {
  lineage_ = model.lineage();
  step_ = model.step();
}

void LineagePin::Set(v1::RequestHeader& header) const {
  header.clear_expected_lineage();
  if (!follow_ && !lineage_.empty()) header.set_expected_lineage(lineage_);
}

bool LineagePin::MayGoOn(const absl::Status& error) const { return follow_ && HasReason(error, Reason::kRolledBack); }

std::string LineagePin::Saw(const v1::RequestStatus& status) {
  uint64_t step = 0;
  for (const v1::StepResult& result : status.result().steps()) step = std::max(step, result.step());
  return MoveTo(status.lineage(), step);
}

std::string LineagePin::Saw(const absl::Status& error) {
  const auto metadata = GetErrorDetails(error).metadata;
  const auto lineage = metadata.find("lineage"), step = metadata.find("step");
  uint64_t number = 0;
  if (lineage == metadata.end() || step == metadata.end() || !absl::SimpleAtoi(step->second, &number)) return "";
  return MoveTo(lineage->second, number);
}

std::string LineagePin::MoveTo(const std::string& lineage, uint64_t step) {
  if (lineage.empty()) return "";
  if (lineage == lineage_ || lineage_.empty()) {
    step_ = std::max(lineage_.empty() ? 0 : step_, step);
    lineage_ = lineage;
    return "";
  }
  // A server that was told what is expected has refused what is lost: it knows both as names of one lineage.
  std::string text = follow_ ? absl::StrCat("going on at step ", step, " of lineage ", lineage, "; steps up to ", step_,
                                            " were seen of lineage ", lineage_)
                             : absl::StrCat("lineage ", lineage_, " goes on as ", lineage,
                                            ": steps that were computed again have other bits, and none is lost");
  lineage_ = lineage;
  step_ = step;
  return text;
}

absl::Status LineagePin::Explained(const absl::Status& error) const {
  if (!IsLost(error)) return error;
  const ErrorDetails details = GetErrorDetails(error);
  return WithRpcExitCode(RelayError(
      error.code(), ErrorReason(error),
      absl::StrCat(error.message(), "\nthis command began with lineage ", lineage_, " and saw steps up to ", step_,
                   " of it. To train everything again: another --run-id. To go on with what is left, on the weights "
                   "that are there now: --follow-lineage"),
      details));
}

}  // namespace stemma::cli
