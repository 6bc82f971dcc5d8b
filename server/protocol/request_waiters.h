// The calls that wait for updates: for their ends, or until they are accepted. A client may let thousands wait, and all
// of them leave with its connection: each that comes, leaves or is due costs a search, however many there are.
//
// Thread safety: none; owned by Jobs and Arrivals.
// Invariants:
//  (1) a call waits for one request at a time.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "server/protocol/events.h"

namespace stemma::server {

// A call that waits for a request's end, or for its deadline.
struct RequestWaiter {
  CallId call = 0;
  absl::Time deadline = absl::InfiniteFuture();
  bool replayed = false;         // an earlier call sent the request
  bool failure_is_error = true;  // UpdateActor; GetRequest answers OK with the failure inside
};

class RequestWaiters {
 public:
  struct Due {
    std::string request_id;
    RequestWaiter waiter;
  };

  void Add(const std::string& request_id, const RequestWaiter& waiter);
  // Takes out all that wait for the request, as they came.
  std::vector<RequestWaiter> Take(const std::string& request_id);
  // Takes out those whose deadlines have come, the earliest first.
  std::vector<Due> TakeDue(absl::Time now);
  // Forgets a call that left, if it waits.
  void Remove(CallId call);

  bool empty() const { return place_of_.empty(); }
  absl::Time NextDeadline() const;

 private:
  struct Place {
    std::string request_id;
    uint64_t order = 0;
  };
  RequestWaiter TakeCall(CallId call);

  std::map<std::string, std::map<uint64_t, RequestWaiter>> by_request_;  // as they came; no entry is empty
  absl::flat_hash_map<CallId, Place> place_of_;
  std::set<std::pair<absl::Time, CallId>> deadlines_;  // without the infinite ones
  uint64_t next_order_ = 1;
};

}  // namespace stemma::server
