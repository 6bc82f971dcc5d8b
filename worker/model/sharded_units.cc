#include "worker/model/sharded_units.h"

#include <ATen/ops/empty.h>
#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "worker/parallel/collective_error.h"

namespace stemma::worker {
namespace {

class AllParameters final : public ParameterAccess {
 public:
  void Embedding(UnitUse /*use*/) override {}
  void Layer(int64_t /*layer*/, UnitUse /*use*/) override {}
  void Head(UnitUse /*use*/) override {}
  double waited_s() const override { return 0; }
};

bool Is(const UnitVisit& visit, int unit, UnitUse use) {
  return visit.unit == unit && visit.weights == (use != UnitUse::kGradient) &&
         visit.gradients == (use != UnitUse::kRead);
}

// Tells whether visits make gradients that others reduce.
bool AddsUp(const OperationVisits& visits) {
  const auto stays = [](const UnitVisit& visit) { return visit.gradients && !visit.reduces; };
  return std::any_of(visits.begin(), visits.end(),
                     [&](const auto& operation) { return std::any_of(operation.begin(), operation.end(), stays); });
}

}  // namespace

ParameterAccess& WholeParameters() {
  static AllParameters all_parameters;
  return all_parameters;
}

ShardedUnits::ShardedUnits(Communicator& data, Weights& weights) : data_(data), weights_(weights) {
  CHECK(weights.is_sharded());
  CHECK_EQ(data.size(), weights.units.ranks);
  const at::Tensor& gradients = weights.unit_buffers.front().gradients;
  if (!gradients.defined()) return;
  scratch_ = at::empty({data.size() * weights.units.largest_part()}, gradients.options());
}

ShardedUnits::~ShardedUnits() {
  // Nothing is left but of a pass that an error ended, whose collectives nobody may ever meet.
  if (!IsIdle()) Break();
}

bool ShardedUnits::IsIdle() const {
  return !reduction_.has_value() &&
         std::all_of(gathers_.begin(), gathers_.end(), [](const auto& g) { return g == nullptr; });
}

void ShardedUnits::BeginPass(OperationVisits visits) {
  CHECK(!open_.has_value() && !reduction_.has_value()) << "a pass has not ended";
  visits_ = std::move(visits);
  operation_ = visit_ = 0;
  begun_ = false;
  walk_.emplace(weights_.units);
  if (AddsUp(visits_)) sums_.emplace(weights_);
}

void ShardedUnits::BeginOperation(size_t operation) {
  CheckAllWereMade();
  CHECK_LT(operation, visits_.size());
  CHECK(!begun_ || operation > operation_) << "operations go on";
  begun_ = true;
  operation_ = operation;
  visit_ = 0;
}

void ShardedUnits::CheckAllWereMade() const {
  if (begun_) CHECK_EQ(visit_, visits_[operation_].size()) << "operation " << operation_ << " has left out visits";
}

void ShardedUnits::EndPass() {
  CheckAllWereMade();
  CloseGradients();
  FinishReduction();
  for (size_t slot = 0; slot < gathers_.size(); ++slot) FinishGather(slot);
  sums_.reset();
}

void ShardedUnits::StopPass() {
  open_.reset();
  if (reduction_.has_value()) std::exchange(reduction_, std::nullopt)->pending->Wait().IgnoreError();
  for (auto& gather : gathers_) {
    if (gather != nullptr) std::exchange(gather, nullptr)->Wait().IgnoreError();
  }
  sums_.reset();
}

void ShardedUnits::Break() {
  data_.GiveUp();
  StopPass();
}

at::Tensor ShardedUnits::OwnPart(const at::Tensor& gathered, int unit) const {
  const int64_t part = weights_.units.parts[static_cast<size_t>(unit)];
  return gathered.narrow(0, data_.rank() * part, part);
}

void ShardedUnits::Visit(int unit, UnitUse use) {
  CHECK(visit_ < visits_[operation_].size() && Is(visits_[operation_][visit_], unit, use))
      << "unit " << unit << " is no visit of operation " << operation_ << " now";
  const UnitVisit visit = visits_[operation_][visit_++];
  CloseGradients();
  const UnitWalk::Gathers gathers = walk_->Visit(visit, VisitAfter(visits_, operation_, visit_));
  if (gathers.own) StartGather(unit);
  if (visit.weights) FinishGather(SlotOf(unit));
  if (gathers.next >= 0) StartGather(gathers.next);
  if (visit.gradients) OpenGradients(visit);
}

void ShardedUnits::StartGather(int unit) {
  FinishGather(SlotOf(unit));  // of a unit that was left out
  at::Tensor gathered = BuffersOf(unit).weights;
  gathers_[SlotOf(unit)] = data_.StartAllGather(kUnitName, BuffersOf(unit).own_weights, gathered);
}

void ShardedUnits::FinishGather(size_t slot) {
  if (gathers_[slot] != nullptr) Wait(std::exchange(gathers_[slot], nullptr));
}

void ShardedUnits::OpenGradients(const UnitVisit& visit) {
  open_ = {visit.unit, visit.reduces};
  if (sums_.has_value()) return;
  if (reduction_.has_value() && SlotOf(reduction_->unit) == SlotOf(visit.unit)) FinishReduction();
  BuffersOf(visit.unit).gradients.zero_();
}

void ShardedUnits::CloseGradients() {
  const std::optional<OpenVisit> open = std::exchange(open_, std::nullopt);
  if (!open.has_value() || !open->reduces) return;
  FinishReduction();
  const int unit = open->unit;
  const at::Tensor& all = BuffersOf(unit).gradients;
  at::Tensor own = OwnPart(all, unit);
  reduction_ = {unit, data_.StartReduceScatterSum(kUnitGradientsName, all, own, scratch_.narrow(0, 0, all.numel()))};
}

void ShardedUnits::FinishReduction() {
  if (!reduction_.has_value()) return;
  const int unit = reduction_->unit;
  std::unique_ptr<PendingCollective> pending = std::move(reduction_->pending);
  reduction_.reset();
  Wait(std::move(pending));
  const UnitBuffers& buffers = BuffersOf(unit);
  buffers.own_gradients.add_(OwnPart(buffers.gradients, unit));
}

void ShardedUnits::Wait(std::unique_ptr<PendingCollective> pending) {
  const double begin_s = RealClock().MonotonicSeconds();
  absl::Status status = pending->Wait();
  waited_s_ += RealClock().MonotonicSeconds() - begin_s;
  ThrowUnlessOk(std::move(status));
}

}  // namespace stemma::worker
