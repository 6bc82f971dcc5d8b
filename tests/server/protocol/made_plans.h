// Runs CoordinatorState as the coordinator does, with every plan made at once where it is asked for.
#pragma once

#include <iterator>
#include <memory>
#include <utility>

#include "server/protocol/coordinator_state.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

// Returns the actions that the event leads to, without the PlanActions on the way.
inline Decision HandleAndPlan(CoordinatorState& state, const PlanFunction& plan, absl::Time now, const Event& event) {
  Decision all;
  Decision last = state.Handle(now, event);
  while (true) {
    std::vector<PlanAction> plans;
    for (Action& action : last.actions) {
      if (auto* wanted = std::get_if<PlanAction>(&action)) {
        plans.push_back(std::move(*wanted));
      } else {
        all.actions.push_back(std::move(action));
      }
    }
    if (plans.empty()) return all;
    last = Decision();
    for (const PlanAction& wanted : plans) {
      PlannedEvent planned{.id = wanted.id,
                           .plan = std::make_shared<absl::StatusOr<RequestPlan>>(
                               plan(*wanted.request, wanted.config, wanted.rates, {}))};
      Decision next = state.Handle(now, planned);
      std::move(next.actions.begin(), next.actions.end(), std::back_inserter(last.actions));
    }
  }
}

}  // namespace stemma::testing
