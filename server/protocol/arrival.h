// A call's job between its arrival and its acceptance, while its plan is made. Plain data of CoordinatorState.
//
// Jobs are accepted in the order in which they came, whatever the order in which their plans are made: an export, which
// needs none, stands in the same line. validate_only is answered as soon as its plan is there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/protocol/events.h"
#include "server/protocol/request_table.h"

namespace stemma::server {

struct Arrival {
  // A call that sent the request; the same request may be sent again while it is being planned.
  struct Sender {
    CallId call = 0;
    bool replayed = false;
  };

  PlanId plan_id = 0;                              // 0: an export
  std::shared_ptr<const TrainingRequest> request;  // null: an export
  v1::ExportWeightsRequest export_request;
  std::vector<Sender> senders;
  std::vector<RequestWaiter> watchers;                // GetRequest
  std::shared_ptr<absl::StatusOr<RequestPlan>> plan;  // null: not made yet

  bool validate_only() const { return request != nullptr && request->header().validate_only(); }
  bool is_update() const {
    return request != nullptr && request->kind == TrainingRequest::Kind::kUpdate && !validate_only();
  }
  bool planned() const { return plan_id == 0 || plan != nullptr; }
  uint64_t bytes() const { return request == nullptr ? 0 : request->bytes; }
};

}  // namespace stemma::server
