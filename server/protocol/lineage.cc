#include "server/protocol/lineage.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/names.h"
#include "glog/logging.h"
#include "server/protocol/journal_fold.h"

namespace stemma::server {
namespace {

constexpr char kDecide[] = "decide, then send new rollouts under a new request_id";

bool Has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool WasCalled(const LostLineage& lost, const std::string& name) { return lost.name == name || Has(lost.former, name); }

}  // namespace

Lineage::Lineage(std::string prefix, const internal::v1::JournalState& state) : prefix_(std::move(prefix)) {
  name_ = state.lineage().empty() ? NextName() : state.lineage();
  step_ = AppliedSteps(state);
  weight_version_ = std::max<uint64_t>(1, state.weight_version());
  former_ = {state.former_lineages().begin(), state.former_lineages().end()};
  for (const internal::v1::LostWeights& lost : state.lost()) {
    lost_.push_back({.name = lost.lineage(),
                     .former = {lost.former_lineages().begin(), lost.former_lineages().end()},
                     .step = lost.step(),
                     .went_on = {lost.checkpoint(), lost.checkpoint_step()}});
  }
}

std::string Lineage::NextName() { return absl::StrCat(prefix_, "-", ++lineages_); }

void Lineage::BeginWith(const internal::v1::KnownCheckpoint& checkpoint) {
  CHECK_EQ(step_, 0u);
  step_ = weights_step_ = checkpoint.step();
  weight_version_ = std::max(weight_version_, checkpoint.weight_version()) + 1;
}

void Lineage::CountStep() {
  CHECK(!behind()) << weights_step_ << " of " << step_;
  weights_step_ = ++step_;
  ++weight_version_;
  ReachStep();
}

void Lineage::CountStepAgain() {
  CHECK(behind()) << step_;
  ++weights_step_;
  ReachStep();
}

uint32_t Lineage::CountLossAgain() {
  const uint64_t step = weights_step_ + 1;
  losses_again_ = step > lost_in_step_ ? 1 : losses_again_ + 1;
  lost_in_step_ = std::max(lost_in_step_, step);
  return losses_again_;
}

void Lineage::ReachStep() {
  if (weights_step_ >= lost_in_step_) lost_in_step_ = losses_again_ = 0;
}

const std::string& Lineage::Rename() {
  former_.push_back(std::exchange(name_, NextName()));
  if (former_.size() > static_cast<size_t>(kFormerLineagesMax)) former_.erase(former_.begin());
  ++weight_version_;
  return name_;
}

void Lineage::Stop(const absl::Status& why) {
  unusable_reason_ = FindReason(ErrorReason(why)).value();
  unusable_ = std::string(why.message());
}

void Lineage::Ruin(const std::string& request_id, const std::string& parameter) {
  ++weight_version_;
  unusable_reason_ = Reason::kNonfiniteUpdate;
  unusable_ = absl::StrCat(
      "step ", step_ + 1, " (request ", request_id, ") wrote numbers that are not finite into ", parameter,
      " or its optimizer state: the weights of lineage ", name_,
      " are lost; restart the worker: the newest checkpoint, or else the model directory, goes on under a new "
      "lineage");
}

LostLineage Lineage::End(const WeightsBase& base) {
  LostLineage lost = {.name = std::exchange(name_, NextName()),
                      .former = std::exchange(former_, {}),
                      .step = std::exchange(step_, base.step),
                      .went_on = base};
  weights_step_ = base.step;
  lost_in_step_ = losses_again_ = 0;
  unusable_.clear();
  ++weight_version_;
  lost_.push_back(lost);
  if (lost_.size() > static_cast<size_t>(kLostLineagesMax)) lost_.pop_front();
  return lost;
}

std::string Lineage::LostText(const LostLineage& lost) const {
  const std::string weights = absl::StrCat("the weights of lineage ", lost.name, " at step ", lost.step);
  const std::string now = absl::StrCat("is at step ", step_, " of lineage ", name_);
  const WeightsBase& base = lost.went_on;
  if (!base.checkpoint.empty()) {
    return absl::StrCat(weights, " are gone; the model, which went on from checkpoint ", base.checkpoint, " at step ",
                        base.step, ", ", now);
  }
  return absl::StrCat(
      weights,
      " were lost with their worker, and there is no checkpoint; the model, which starts again from its "
      "directory, ",
      now);
}

std::map<std::string, std::string> Lineage::LostMetadata(const LostLineage& lost) const {
  return {{"lineage", name_},
          {"step", absl::StrCat(step_)},
          {"lost_lineage", lost.name},
          {"lost_step", absl::StrCat(lost.step)}};
}

absl::Status Lineage::LostError(const LostLineage& lost) const {
  return MakeError(Reason::kRolledBack, LostText(lost), {.metadata = LostMetadata(lost)});
}

absl::Status Lineage::RolledBackError(const UpdateRecord& record) const {
  LostLineage lost = {.name = record.lineage, .step = record.lost_step.value()};
  const auto known =
      std::find_if(lost_.begin(), lost_.end(), [&](const LostLineage& l) { return l.name == lost.name; });
  if (known != lost_.end()) lost.went_on = known->went_on;
  const std::string gone = known != lost_.end()
                               ? LostText(lost)
                               : absl::StrCat("the weights of lineage ", lost.name, " at step ", lost.step,
                                              " are gone; the model is at step ", step_, " of lineage ", name_);
  std::string before;
  if (record.final() && record.status.state() != v1::ROLLED_BACK) {
    absl::StrAppend(&before, ", was ", v1::RequestState_Name(record.status.state()),
                    record.failure.ok() ? "" : absl::StrCat(" (", ErrorReason(record.failure), ")"));
  }
  return MakeError(
      Reason::kRolledBack,
      absl::StrCat("request ", record.id, ", with ", record.status.steps_applied(), " of ", record.status.steps_total(),
                   " steps applied", before, ", is rolled back: ", gone, ": ", kDecide),
      {.metadata = LostMetadata(lost)});
}

absl::Status Lineage::UnusableError() const {
  return MakeError(unusable_reason_, unusable_, {.metadata = {{"lineage", name_}, {"step", absl::StrCat(step_)}}});
}

absl::Status Lineage::CheckName(const std::string& expected) const {
  if (expected == name_ || Has(former_, expected)) return absl::OkStatus();
  if (const absl::Status name = CheckFileName(expected); !name.ok()) {  // before it is said again
    const std::string what(name.message());
    return MakeError(Reason::kInvalidRequest, absl::StrCat("expected_lineage ", what),
                     {.violations = {{"expected_lineage", what}}});
  }
  std::map<std::string, std::string> metadata = {
      {"lineage", name_}, {"step", absl::StrCat(step_)}, {"expected_lineage", expected}};
  const auto lost =
      std::find_if(lost_.begin(), lost_.end(), [&](const LostLineage& l) { return WasCalled(l, expected); });
  std::string why = absl::StrCat("this server does not know it (was it started again?); the model is at step ", step_,
                                 " of lineage ", name_);
  if (lost != lost_.end()) {
    why = LostText(*lost);
    metadata.merge(LostMetadata(*lost));
  }
  return MakeError(Reason::kLineageMismatch,
                   absl::StrCat("expected_lineage is ", expected, ": ", why,
                                ": decide, then expect the lineage that is there, or none"),
                   {.metadata = std::move(metadata)});
}

bool Lineage::WentFrom(const std::string& lineage, const internal::v1::KnownCheckpoint& checkpoint) const {
  return !lost_.empty() && WasCalled(lost_.back(), lineage) && lost_.back().went_on.checkpoint == checkpoint.name() &&
         step_ == checkpoint.step();
}

absl::Status Lineage::CheckExpected(const v1::RequestHeader& header, uint64_t step) const {
  if (header.has_expected_lineage()) {
    if (absl::Status status = CheckName(header.expected_lineage()); !status.ok()) return status;
  }
  if (!header.has_expected_step() || header.expected_step() == step) return absl::OkStatus();
  const char* const advice = header.expected_step() < step
                                 ? "look at what trained it since"
                                 : "a step that was skipped, or given up for a checkpoint, does not count: look at "
                                   "the outcomes of the requests before it";
  return MakeError(
      Reason::kStepMismatch,
      absl::StrCat("expected_step is ", header.expected_step(), ", the request would start at step ", step,
                   " of lineage ", name_, "; ", advice, ", or leave expected_step out to go on from there"),
      {.metadata = {{"step", absl::StrCat(step)}, {"lineage", name_}}});
}

}  // namespace stemma::server
