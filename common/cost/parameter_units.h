// How ranks that hold the same part of the model divide its parameters (ZeRO-3): by units, of which each rank owns a
// part, and in which order units are gathered. Pure arithmetic; the worker walks by it (worker/model/sharded_units.h),
// the server counts by it.
//
// A unit is what is gathered at once: the embedding, each layer (the last one of the model with the final norm), the
// head. Gathered layers lie in two slots in turn, so that one is gathered while another runs; the embedding and the
// head share a third. Gradients have slots alike.
//
// A sweep goes once through a rank's units, forward or backward, and each unit is a visit. Invariant: whoever walks the
// same visits gathers the same units in the same order.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "common/model/model_shard.h"

namespace stemma {

struct ParameterUnits {
  int64_t ranks = 1;
  std::vector<int64_t> parts = {};  // by unit: elements that each rank owns of it
  // Units of what a rank begins and ends with; -1: its stage does not. A tied head is the embedding.
  int embedding = -1, head = -1;
  int first_layer = 0, num_layers = 0;

  static constexpr int kSlots = 3;  // two for layers, one for what is none
  int slot(int unit) const { return is_layer(unit) ? (unit - first_layer) % 2 : 2; }
  bool is_layer(int unit) const { return unit >= first_layer && unit < first_layer + num_layers; }

  int64_t gathered(int unit) const { return ranks * parts[static_cast<size_t>(unit)]; }
  // Returns the elements that a rank owns.
  int64_t part() const;
  // Returns the elements of all units, gathered.
  int64_t all() const { return ranks * part(); }
  int64_t largest_part() const { return parts.empty() ? 0 : *std::max_element(parts.begin(), parts.end()); }
  // Returns the elements of a slot: of its largest unit. 0: it has none.
  int64_t slot_elements(int slot) const;
  int64_t all_slots_elements() const { return slot_elements(0) + slot_elements(1) + slot_elements(2); }
};

// Returns the units of what a rank holds of a model, divided by `ranks` >= 1.
ParameterUnits ParameterUnitsOf(const ModelShard& shard, int64_t ranks);

struct UnitVisit {
  int unit = 0;
  bool weights = false;    // are read
  bool gradients = false;  // are made
  bool reduces = false;    // which are then handed to their owners
  bool operator==(const UnitVisit&) const = default;
};

enum class Sweep {
  kPrefix,    // a block of prefixes forward: Phase A, or Phase C where it runs again
  kWave,      // a wave forward, with the head; in a step the head's gradient is made there
  kBackward,  // of either
};
std::vector<UnitVisit> VisitsOf(const ParameterUnits& units, Sweep sweep, bool forward_only);

// The visits of a pass, operation by operation; an operation may make none.
using OperationVisits = std::vector<std::vector<UnitVisit>>;

// Lets only the last visit that makes a unit's gradients reduce them: until then ranks add them up.
void ReduceOnce(OperationVisits& visits);
// Lets none reduce them: a part of a pass whose last visits come later.
void ReduceNever(OperationVisits& visits);

// Returns the visit that comes after so many of an operation's, whichever operation makes it; null: none does.
const UnitVisit* VisitAfter(const OperationVisits& visits, size_t operation, size_t made);

// What the slots hold while visits are walked. A pass begins with empty ones.
class UnitWalk {
 public:
  explicit UnitWalk(const ParameterUnits& units) : units_(units) { held_.fill(-1); }

  // What a visit gathers: its own unit, before it; and beside it the next visit's, whose slot must be another one.
  struct Gathers {
    bool own = false;
    int next = -1;  // none
  };
  // `next`: null: this visit is the last.
  Gathers Visit(const UnitVisit& visit, const UnitVisit* next);

 private:
  bool Holds(int unit) const { return held_[static_cast<size_t>(units_.slot(unit))] == unit; }
  void Hold(int unit) { held_[static_cast<size_t>(units_.slot(unit))] = unit; }

  const ParameterUnits& units_;
  std::array<int, ParameterUnits::kSlots> held_;
};

// What one rank sends to the others, and in how many collectives.
struct UnitTraffic {
  int64_t weight_elements = 0, weight_collectives = 0;
  int64_t gradient_elements = 0, gradient_collectives = 0;
  UnitTraffic& operator+=(const UnitTraffic& other);
};

// Returns what each operation of a pass exchanges.
std::vector<UnitTraffic> TrafficOf(const ParameterUnits& units, const OperationVisits& visits);

}  // namespace stemma
