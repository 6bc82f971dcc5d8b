#include "server/protocol/request_waiters.h"

#include "glog/logging.h"

namespace stemma::server {

void RequestWaiters::Add(const std::string& request_id, const RequestWaiter& waiter) {
  const uint64_t order = next_order_++;
  CHECK(place_of_.try_emplace(waiter.call, Place{request_id, order}).second)
      << "call " << waiter.call << " waits twice";
  by_request_[request_id].emplace(order, waiter);
  if (waiter.deadline != absl::InfiniteFuture()) deadlines_.emplace(waiter.deadline, waiter.call);
}

RequestWaiter RequestWaiters::TakeCall(CallId call) {
  const auto place = place_of_.find(call);
  CHECK(place != place_of_.end()) << call;
  const auto request = by_request_.find(place->second.request_id);
  const auto found = request->second.find(place->second.order);
  const RequestWaiter waiter = found->second;
  request->second.erase(found);
  if (request->second.empty()) by_request_.erase(request);
  place_of_.erase(place);
  deadlines_.erase({waiter.deadline, call});
  return waiter;
}

std::vector<RequestWaiter> RequestWaiters::Take(const std::string& request_id) {
  std::vector<RequestWaiter> taken;
  const auto request = by_request_.find(request_id);
  if (request == by_request_.end()) return taken;
  for (const auto& [order, waiter] : request->second) {
    place_of_.erase(waiter.call);
    deadlines_.erase({waiter.deadline, waiter.call});
    taken.push_back(waiter);
  }
  by_request_.erase(request);
  return taken;
}

std::vector<RequestWaiters::Due> RequestWaiters::TakeDue(absl::Time now) {
  std::vector<Due> due;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const CallId call = deadlines_.begin()->second;
    std::string request_id = place_of_.at(call).request_id;
    due.push_back({std::move(request_id), TakeCall(call)});
  }
  return due;
}

void RequestWaiters::Remove(CallId call) {
  if (place_of_.contains(call)) TakeCall(call);
}

absl::Time RequestWaiters::NextDeadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

}  // namespace stemma::server
