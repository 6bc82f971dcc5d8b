#include "server/protocol/known_requests.h"

#include <algorithm>

#include "common/base/request_state.h"
#include "server/protocol/request_table.h"

namespace stemma::server {

using internal::v1::KnownRequest;

void KnownRequests::Read() {
  by_id_.clear();
  finals_.clear();
  for (KnownRequest& request : *state_->mutable_requests()) {
    by_id_.insert_or_assign(request.request_id(), &request);
    if (IsFinal(request.status().state())) finals_.emplace(request.end_order(), &request);
  }
}

KnownRequest* KnownRequests::FindOpen(const std::string& id) const {
  const auto request = by_id_.find(id);
  return request == by_id_.end() || IsFinal(request->second->status().state()) ? nullptr : request->second;
}

KnownRequest& KnownRequests::Add(const std::string& id) {
  if (const auto ended = by_id_.find(id); ended != by_id_.end()) Remove(ended->second);
  KnownRequest& request = *state_->add_requests();
  request.set_request_id(id);
  by_id_.emplace(request.request_id(), &request);
  return request;
}

void KnownRequests::End(v1::RequestState as, KnownRequest& request) {
  request.mutable_status()->set_state(as);
  request.set_end_order(finals_.empty() ? 1 : finals_.rbegin()->first + 1);
  if (IsFinal(as)) finals_.emplace(request.end_order(), &request);  // a row may say anything
}

void KnownRequests::DropOldest(uint64_t requests_kept) {
  while (finals_.size() > requests_kept) {
    const KnownRequest* oldest = finals_.begin()->second;
    state_->add_expired_ids(oldest->request_id());
    Remove(oldest);
  }
  const int too_many = state_->expired_ids_size() - static_cast<int>(kExpiredIdsMax);
  if (too_many > 0) state_->mutable_expired_ids()->DeleteSubrange(0, too_many);
}

void KnownRequests::Remove(const KnownRequest* request) {
  by_id_.erase(request->request_id());
  const auto [first, last] = finals_.equal_range(request->end_order());
  const auto final = std::find_if(first, last, [&](const auto& ended) { return ended.second == request; });
  if (final != last) finals_.erase(final);
  auto& requests = *state_->mutable_requests();
  const auto place = std::find(requests.pointer_begin(), requests.pointer_end(), request);
  requests.DeleteSubrange(static_cast<int>(place - requests.pointer_begin()), 1);
}

}  // namespace stemma::server
