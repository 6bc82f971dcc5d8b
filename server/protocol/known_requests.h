// The requests of a journal's state, and what finds one of them without a walk through all that are kept: by its id,
// and by the order in which those that are final ended.
//
// Thread safety: none. Used by what folds rows.
// Invariants, of a state whose ids are unique (CheckJournalState):
//  (1) by_id_ has each of the state's requests, and finals_ those of them that are final. Nobody else adds, removes or
//      ends one while this is there.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "stemma/internal/v1/journal.pb.h"

namespace stemma::server {

class KnownRequests {
 public:
  // `state` outlives it.
  explicit KnownRequests(internal::v1::JournalState* state) : state_(state) { Read(); }
  KnownRequests(const KnownRequests&) = delete;
  KnownRequests& operator=(const KnownRequests&) = delete;

  // Begins anew, where another state took the place of the one before.
  void Read();
  // Null: there is none, or it is final.
  internal::v1::KnownRequest* FindOpen(const std::string& id) const;
  // Adds an open one, in the place of a final one of this id. REQUIRES: none of this id is open.
  internal::v1::KnownRequest& Add(const std::string& id);
  // Ends an open one. RequestTable drops those first that ended first, and so does DropOldest.
  void End(v1::RequestState as, internal::v1::KnownRequest& request);
  // Drops final ones, oldest first, and remembers their ids as expired, until there are at most `requests_kept`.
  void DropOldest(uint64_t requests_kept);

 private:
  void Remove(const internal::v1::KnownRequest* request);
  // Deletes what neither by_id_ nor finals_ has any more.
  void Delete(const internal::v1::KnownRequest* request);
  void DeleteMany(const absl::flat_hash_set<const internal::v1::KnownRequest*>& dropped);

  internal::v1::JournalState* const state_;
  absl::flat_hash_map<std::string_view, internal::v1::KnownRequest*> by_id_;  // by their own ids
  std::multimap<uint64_t, internal::v1::KnownRequest*> finals_;               // by end_order
};

}  // namespace stemma::server
