#include "server/protocol/known_requests.h"

#include <algorithm>
#include <vector>

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
  std::vector<const KnownRequest*> dropped;
  for (; finals_.size() > requests_kept; finals_.erase(finals_.begin())) {
    const KnownRequest* oldest = dropped.emplace_back(finals_.begin()->second);
    state_->add_expired_ids(oldest->request_id());
    by_id_.erase(oldest->request_id());
  }
  // One is the rule; many are dropped where another server kept more.
  if (dropped.size() == 1) Delete(dropped[0]);
  if (dropped.size() > 1) DeleteMany({dropped.begin(), dropped.end()});
  const int too_many = state_->expired_ids_size() - static_cast<int>(kExpiredIdsMax);
  if (too_many > 0) state_->mutable_expired_ids()->DeleteSubrange(0, too_many);
}

void KnownRequests::Remove(const KnownRequest* request) {
  by_id_.erase(request->request_id());
  const auto [first, last] = finals_.equal_range(request->end_order());
  const auto final = std::find_if(first, last, [&](const auto& ended) { return ended.second == request; });
  if (final != last) finals_.erase(final);
  Delete(request);
}

void KnownRequests::Delete(const KnownRequest* request) {
  auto& requests = *state_->mutable_requests();
  const auto place = std::find(requests.pointer_begin(), requests.pointer_end(), request);
  requests.DeleteSubrange(static_cast<int>(place - requests.pointer_begin()), 1);
}

// Delete moves all that are behind it, each time: this moves what stays, once.
void KnownRequests::DeleteMany(const absl::flat_hash_set<const KnownRequest*>& dropped) {
  auto& requests = *state_->mutable_requests();
  int stay = 0;
  for (int i = 0; i < requests.size(); ++i) {
    if (!dropped.contains(&requests[i])) requests.SwapElements(stay++, i);
  }
  requests.DeleteSubrange(stay, requests.size() - stay);
}

}  // namespace stemma::server
