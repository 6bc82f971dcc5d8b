// The requests that clients may ask for: open ones with their payload and plan, finished ones with their outcome.
//
// Thread safety: none; owned by the coordinator thread.
// Invariants:
//  (1) an id names one record. A final one has no payload and no plan; an open one of an earlier server has none before
//      they are read back.
//  (2) at most `requests_kept` final records; an id that was dropped is remembered as expired, so that a late repeat is
//      refused and never runs twice (the oldest of kExpiredIdsMax are forgotten).
//  (3) log-probs and traces of final records take at most `result_bytes_max` of memory together, oldest dropped first.
//  (4) open_ has the open records and no others: who asks for them pays nothing for final ones, of which there may be
//      many more.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/protocol/events.h"
#include "server/protocol/request_plan.h"

namespace stemma::server {

inline constexpr size_t kExpiredIdsMax = 1'000'000;
inline constexpr uint64_t kResultBytesMax = 1ull << 30;

struct UpdateRecord {
  std::string id;
  std::string digest;
  std::string lineage;  // whose weights it trains
  uint64_t sequence = 0;
  uint64_t bytes = 0;
  std::shared_ptr<const TrainingRequest> request;
  RequestPlan plan;                   // null and empty together
  v1::RequestStatus status;           // without queue_position and replayed
  v1::UpdateResult result;            // of the steps so far; moves into status when DONE
  absl::Status failure;               // of FAILED and CANCELLED
  uint64_t last_step = 0;             // the model's, after the last step of it that was applied; 0: none was
  std::optional<uint64_t> lost_step;  // its lineage was lost at this step: ROLLED_BACK, whatever it was
  bool resumable = false;             // final, but a repeat runs it again (ATTEMPTS_EXHAUSTED)
  std::vector<std::shared_ptr<const v1::GroupResult>> results;
  uint64_t result_bytes = 0;  // of memory: log-probs and traces, once final
  bool results_dropped = false;
  bool ended = false;
  uint64_t end_order = 0;  // of a record that is restored, KnownRequest's
  bool again = false;      // it has ended: only what was decided about its steps is computed again
  uint32_t attempt = 1;    // of step k
  uint32_t k = 0;
  bool cancel_requested = false;

  bool final() const { return ended; }
  // Step k is one whose result stands already: the weights are behind it, and are being brought back to where they
  // were.
  bool computes_again() const { return k < static_cast<uint32_t>(result.steps_size()); }
};

// Copies a status as a list of requests tells it: without the steps, the plan and the other parts of a result that grow
// with the request.
v1::RequestStatus ListedStatus(const v1::RequestStatus& status);

class RequestTable {
 public:
  explicit RequestTable(uint64_t requests_kept, uint64_t result_bytes_max = kResultBytesMax)
      : requests_kept_(requests_kept), result_bytes_max_(result_bytes_max) {}

  UpdateRecord* Find(const std::string& id);
  bool IsExpired(const std::string& id) const { return expired_.contains(id); }
  // Replaces a final record of the same id.
  UpdateRecord& Insert(UpdateRecord record);
  // Takes the records of an earlier server: open ones, and final ones without payload.
  void Restore(UpdateRecord record);
  void RestoreExpired(const std::string& id);
  // Drops payload and plan, and what retention no longer covers.
  void Finalize(UpdateRecord& record);
  // Drops the log-probs and the result of a final record.
  void DropResults(UpdateRecord& record);

  std::vector<UpdateRecord*> InOrder();  // oldest first
  std::vector<UpdateRecord*> Open();     // oldest first
  uint64_t open_count() const { return open_.size(); }
  uint64_t open_bytes() const { return open_bytes_; }

 private:
  UpdateRecord& Add(UpdateRecord record);
  void Expire(uint64_t sequence);
  void DropOldResults();
  void DropDetails(UpdateRecord& record);  // log-probs and trace

  const uint64_t requests_kept_, result_bytes_max_;
  uint64_t next_sequence_ = 1;
  uint64_t open_bytes_ = 0, result_bytes_ = 0;
  std::map<uint64_t, UpdateRecord> records_;  // by sequence
  std::map<uint64_t, UpdateRecord*> open_;    // of records_, by sequence
  std::map<std::string, uint64_t> sequence_of_;
  std::deque<uint64_t> finals_;    // in the order they became final
  std::deque<uint64_t> detailed_;  // in the same order: those that have log-probs or traces, or had them
  absl::flat_hash_set<std::string> expired_;
  std::deque<std::string> expired_order_;
};

}  // namespace stemma::server
