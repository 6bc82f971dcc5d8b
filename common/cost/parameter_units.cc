#include "common/cost/parameter_units.h"

#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "common/base/round_up.h"
#include "common/cost/state_slabs.h"

namespace stemma {
namespace {

// Returns the elements of each of a rank's parameters: tensors of one layer and role are one.
std::map<std::pair<int64_t, TensorRole>, int64_t> ParameterElements(const ModelShard& shard) {
  std::map<std::pair<int64_t, TensorRole>, int64_t> parameters;
  for (const LocalTensor& tensor : LocalTensorsOfOneExpert(shard)) {
    parameters[{tensor.spec.layer, tensor.spec.role}] += tensor.elements();
  }
  return parameters;
}

// Adds a collective over a unit: a rank sends its part to every other one, or every other one's part of what it made.
void Count(const ParameterUnits& units, int unit, int64_t& elements, int64_t& collectives) {
  if (units.ranks == 1) return;
  elements += units.gathered(unit) - units.parts[static_cast<size_t>(unit)];
  ++collectives;
}

}  // namespace

int64_t ParameterUnits::part() const { return std::accumulate(parts.begin(), parts.end(), int64_t{0}); }

int64_t ParameterUnits::slot_elements(int slot) const {
  int64_t largest = 0;
  for (int unit = 0; unit < static_cast<int>(parts.size()); ++unit) {
    if (this->slot(unit) == slot) largest = std::max(largest, gathered(unit));
  }
  return largest;
}

ParameterUnits ParameterUnitsOf(const ModelShard& shard, int64_t ranks) {
  ParameterUnits units = {.ranks = ranks, .num_layers = static_cast<int>(shard.layer_end - shard.layer_begin)};
  std::vector<int64_t> layers(static_cast<size_t>(units.num_layers));
  int64_t embedding = 0, head = 0, final_norm = 0;
  for (const auto& [place, elements] : ParameterElements(shard)) {
    const auto [layer, role] = place;
    int64_t& unit = layer >= 0                       ? layers[static_cast<size_t>(layer - shard.layer_begin)]
                    : role == TensorRole::kEmbedding ? embedding
                    : role == TensorRole::kHead      ? head
                                                     : final_norm;
    unit += RoundUpToSlabUnit(elements);
  }
  if (!layers.empty()) layers.back() += final_norm;
  const auto add = [&](int64_t elements) {
    units.parts.push_back(RoundUpToSlabUnit(DivideUp(elements, ranks)));
    return static_cast<int>(units.parts.size()) - 1;
  };
  const int tied = embedding > 0 ? add(embedding) : -1;
  if (shard.is_first()) units.embedding = tied;
  units.first_layer = static_cast<int>(units.parts.size());
  for (const int64_t elements : layers) add(elements);
  if (shard.is_last()) units.head = head > 0 ? add(head) : tied;
  return units;
}

std::vector<UnitVisit> VisitsOf(const ParameterUnits& units, Sweep sweep, bool forward_only) {
  std::vector<UnitVisit> visits;
  const int end = units.first_layer + units.num_layers;
  if (sweep == Sweep::kBackward) {
    for (int unit = end - 1; unit >= units.first_layer; --unit) visits.push_back({unit, true, true, true});
    if (units.embedding >= 0) visits.push_back({units.embedding, /*weights=*/false, /*gradients=*/true, true});
    return visits;
  }
  if (units.embedding >= 0) visits.push_back({units.embedding, true, false});
  for (int unit = units.first_layer; unit < end; ++unit) visits.push_back({unit, true, false});
  if (sweep == Sweep::kWave && units.head >= 0) visits.push_back({units.head, true, !forward_only, !forward_only});
  return visits;
}

void ReduceOnce(OperationVisits& visits) {
  std::set<int> reduced;
  for (auto operation = visits.rbegin(); operation != visits.rend(); ++operation) {
    for (auto visit = operation->rbegin(); visit != operation->rend(); ++visit) {
      if (visit->gradients) visit->reduces = reduced.insert(visit->unit).second;
    }
  }
}

void ReduceNever(OperationVisits& visits) {
  for (std::vector<UnitVisit>& operation : visits) {
    for (UnitVisit& visit : operation) visit.reduces = false;
  }
}

UnitWalk::Gathers UnitWalk::Visit(const UnitVisit& visit, const UnitVisit* next) {
  Gathers gathers;
  if (visit.weights && !Holds(visit.unit)) {
    gathers.own = true;
    Hold(visit.unit);
  }
  const bool in_use = visit.weights && next != nullptr && units_.slot(next->unit) == units_.slot(visit.unit);
  if (next == nullptr || !next->weights || in_use || Holds(next->unit)) return gathers;
  gathers.next = next->unit;
  Hold(next->unit);
  return gathers;
}

UnitTraffic& UnitTraffic::operator+=(const UnitTraffic& other) {
  weight_elements += other.weight_elements;
  weight_collectives += other.weight_collectives;
  gradient_elements += other.gradient_elements;
  gradient_collectives += other.gradient_collectives;
  return *this;
}

const UnitVisit* VisitAfter(const OperationVisits& visits, size_t operation, size_t made) {
  for (; operation < visits.size(); ++operation, made = 0) {
    if (made < visits[operation].size()) return &visits[operation][made];
  }
  return nullptr;
}

std::vector<UnitTraffic> TrafficOf(const ParameterUnits& units, const OperationVisits& visits) {
  UnitWalk walk(units);
  std::vector<UnitTraffic> traffic(visits.size());
  for (size_t operation = 0; operation < visits.size(); ++operation) {
    UnitTraffic& own = traffic[operation];
    for (size_t v = 0; v < visits[operation].size(); ++v) {
      const UnitVisit& visit = visits[operation][v];
      const UnitWalk::Gathers gathers = walk.Visit(visit, VisitAfter(visits, operation, v + 1));
      if (gathers.own) Count(units, visit.unit, own.weight_elements, own.weight_collectives);
      if (gathers.next >= 0) Count(units, gathers.next, own.weight_elements, own.weight_collectives);
      if (visit.reduces) Count(units, visit.unit, own.gradient_elements, own.gradient_collectives);
    }
  }
  return traffic;
}

}  // namespace stemma
