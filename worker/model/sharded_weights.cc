#include "worker/model/sharded_weights.h"

#include <ATen/ops/zeros.h>
#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "common/cost/state_slabs.h"

namespace stemma::worker {
namespace {

using Slots = std::array<at::Tensor, ParameterUnits::kSlots>;

// Lists the first parameter of each unit: the embedding, each layer with what follows the last one but the head, the
// head.
std::vector<int64_t> UnitBegins(const Weights& weights) {
  std::vector<int64_t> begins;
  if (weights.embedding >= 0) begins.push_back(weights.embedding);
  for (const LayerWeights& layer : weights.layers) begins.push_back(layer.first());
  if (weights.head >= 0 && weights.head != weights.embedding) begins.push_back(weights.head);
  return begins;
}

// Returns the parameters of a unit.
std::span<Parameter> ParametersOf(size_t unit, Weights& weights) {
  const auto begin = static_cast<size_t>(weights.unit_begins[unit]);
  const size_t end = unit + 1 < weights.unit_begins.size() ? static_cast<size_t>(weights.unit_begins[unit + 1])
                                                           : weights.parameters.size();
  return std::span(weights.parameters).subspan(begin, end - begin);
}

Slots MakeSlots(const ParameterUnits& units, const at::TensorOptions& options) {
  Slots slots;
  for (int slot = 0; slot < ParameterUnits::kSlots; ++slot) {
    slots[static_cast<size_t>(slot)] = at::zeros({units.slot_elements(slot)}, options);
  }
  return slots;
}

// What one unit's parameters are given.
class UnitPlaces {
 public:
  UnitPlaces(const UnitBuffers& buffers, int64_t rank)
      : buffers_(buffers), own_begin_(rank * buffers.own_weights.numel()) {}

  void Give(Parameter& p) {
    const std::vector<int64_t> shape = p.weight.sizes().vec();
    const int64_t elements = p.weight.numel(), part = buffers_.own_weights.numel();
    const int64_t from = std::clamp<int64_t>(own_begin_ - place_, 0, elements),
                  to = std::clamp<int64_t>(own_begin_ + part - place_, 0, elements);
    const auto own = [&](const at::Tensor& values) {
      return values.narrow(0, from < to ? place_ + from - own_begin_ : 0, std::max<int64_t>(to - from, 0));
    };
    p.state_begin = from < to ? from : 0;
    p.weight = buffers_.weights.narrow(0, place_, elements).view(shape);
    p.weight_shard = own(buffers_.own_weights);
    if (buffers_.gradients.defined()) {
      p.grad = buffers_.gradients.narrow(0, place_, elements).view(shape);
      p.grad_shard = own(buffers_.own_gradients);
    }
    place_ += RoundUpToSlabUnit(elements);
  }

  int64_t end() const { return place_; }

 private:
  const UnitBuffers& buffers_;
  const int64_t own_begin_;  // of the rank's part, in the unit
  int64_t place_ = 0;        // of the next parameter
};

}  // namespace

void ShardParameters(int64_t rank, int64_t ranks, at::Device device, Weights& weights) {
  CHECK_LT(rank, ranks);
  const bool trained = weights.parameters.front().grad.defined();
  const ParameterUnits& units = weights.units = ParameterUnitsOf(weights.shard, ranks);
  weights.unit_begins = UnitBegins(weights);
  CHECK_EQ(weights.unit_begins.size(), units.parts.size());
  const auto run = at::TensorOptions(device).dtype(weights.run_dtype),
             accumulate = at::TensorOptions(device).dtype(weights.accumulate_dtype);
  const Slots weight_slots = MakeSlots(units, run), gradient_slots = trained ? MakeSlots(units, accumulate) : Slots{};
  for (size_t unit = 0; unit < units.parts.size(); ++unit) {
    const auto slot = static_cast<size_t>(units.slot(static_cast<int>(unit)));
    const int64_t gathered = units.gathered(static_cast<int>(unit));
    UnitBuffers buffers = {.weights = weight_slots[slot].narrow(0, 0, gathered),
                           .own_weights = at::zeros({units.parts[unit]}, run)};
    if (trained) {
      buffers.gradients = gradient_slots[slot].narrow(0, 0, gathered);
      buffers.own_gradients = at::zeros({units.parts[unit]}, accumulate);
    }
    UnitPlaces places(buffers, rank);
    for (Parameter& p : ParametersOf(unit, weights)) places.Give(p);
    CHECK_LE(places.end(), gathered);
    weights.unit_buffers.push_back(std::move(buffers));
  }
}

void PlaceGradients(int unit, const at::Tensor& gradients, Weights& weights) {
  CHECK_EQ(gradients.numel(), weights.units.gathered(unit));
  int64_t place = 0;
  for (Parameter& p : ParametersOf(static_cast<size_t>(unit), weights)) {
    p.grad = gradients.narrow(0, place, p.grad.numel()).view(p.grad.sizes());
    place += RoundUpToSlabUnit(p.grad.numel());
  }
  weights.unit_buffers[static_cast<size_t>(unit)].gradients = gradients;
}

}  // namespace stemma::worker
