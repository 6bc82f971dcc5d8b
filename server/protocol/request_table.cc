#include "server/protocol/request_table.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"

namespace stemma::server {
namespace {

// Returns what log-probs and traces take in memory: for short responses many times the bytes in which they travel.
uint64_t MemoryOfDetails(const UpdateRecord& record) {
  uint64_t bytes = 0;
  for (const auto& result : record.results) bytes += result->SpaceUsedLong();
  for (const v1::StepResult& step : record.status.result().steps()) {
    if (step.has_trace()) bytes += step.trace().SpaceUsedLong();
  }
  return bytes;
}

}  // namespace

v1::RequestStatus ListedStatus(const v1::RequestStatus& status) {
  v1::RequestStatus listed;
  listed.set_request_id(status.request_id());
  listed.set_state(status.state());
  listed.set_steps_applied(status.steps_applied());
  listed.set_steps_total(status.steps_total());
  listed.set_replayed(status.replayed());
  listed.set_queue_position(status.queue_position());
  listed.set_lineage(status.lineage());
  if (status.has_plan()) *listed.mutable_plan() = status.plan();
  if (status.has_failure()) *listed.mutable_failure() = status.failure();
  if (status.has_result()) {
    listed.mutable_result()->set_lineage(status.lineage());
    *listed.mutable_result()->mutable_metrics() = status.result().metrics();
  }
  return listed;
}

UpdateRecord* RequestTable::Find(const std::string& id) {
  const auto it = sequence_of_.find(id);
  return it == sequence_of_.end() ? nullptr : &records_.at(it->second);
}

UpdateRecord& RequestTable::Insert(UpdateRecord record) {
  CHECK(!record.final()) << record.id;
  if (UpdateRecord* old = Find(record.id)) {
    CHECK(old->final()) << record.id << " is open";
    result_bytes_ -= old->result_bytes;
    std::erase(finals_, old->sequence);
    std::erase(detailed_, old->sequence);
    records_.erase(old->sequence);
  }
  open_bytes_ += record.bytes;
  UpdateRecord& added = Add(std::move(record));
  open_.emplace(added.sequence, &added);
  return added;
}

UpdateRecord& RequestTable::Add(UpdateRecord record) {
  record.sequence = next_sequence_++;
  sequence_of_[record.id] = record.sequence;
  return records_.emplace(record.sequence, std::move(record)).first->second;
}

void RequestTable::Restore(UpdateRecord record) {
  if (!record.final()) {
    Insert(std::move(record));
  } else {
    const UpdateRecord& added = Add(std::move(record));
    const auto ended_later = [&](uint64_t end_order, uint64_t other) {
      return end_order < records_.at(other).end_order;
    };
    finals_.insert(std::upper_bound(finals_.begin(), finals_.end(), added.end_order, ended_later), added.sequence);
  }
}

void RequestTable::RestoreExpired(const std::string& id) {
  if (expired_.insert(id).second) expired_order_.push_back(id);
}

void RequestTable::Finalize(UpdateRecord& record) {
  CHECK(!record.final()) << record.id;
  record.ended = true;
  record.plan = RequestPlan();
  record.request.reset();  // last: what is freed before goes back to the system with a large one
  CHECK_EQ(open_.erase(record.sequence), 1u) << record.id;
  open_bytes_ -= record.bytes;
  record.result_bytes = MemoryOfDetails(record);
  result_bytes_ += record.result_bytes;
  finals_.push_back(record.sequence);
  if (record.result_bytes > 0) detailed_.push_back(record.sequence);
  DropOldResults();
  while (finals_.size() > requests_kept_) Expire(finals_.front());
}

void RequestTable::Expire(uint64_t sequence) {
  CHECK_EQ(sequence, finals_.front());
  finals_.pop_front();
  if (!detailed_.empty() && detailed_.front() == sequence) detailed_.pop_front();
  const UpdateRecord& record = records_.at(sequence);
  result_bytes_ -= record.result_bytes;
  sequence_of_.erase(record.id);
  if (expired_.insert(record.id).second) expired_order_.push_back(record.id);
  records_.erase(sequence);
  if (expired_order_.size() > kExpiredIdsMax) {
    expired_.erase(expired_order_.front());
    expired_order_.pop_front();
  }
}

void RequestTable::DropDetails(UpdateRecord& record) {
  result_bytes_ -= std::exchange(record.result_bytes, 0);
  if (!record.results.empty()) record.results_dropped = true;
  record.results.clear();
  if (!record.status.has_result()) return;
  for (v1::StepResult& step : *record.status.mutable_result()->mutable_steps()) step.clear_trace();
}

void RequestTable::DropResults(UpdateRecord& record) {
  CHECK(record.final()) << record.id;
  DropDetails(record);
  record.results_dropped = true;
  record.status.clear_result();
}

void RequestTable::DropOldResults() {
  while (result_bytes_ > result_bytes_max_) {
    CHECK(!detailed_.empty());
    DropDetails(records_.at(detailed_.front()));
    detailed_.pop_front();
  }
}

std::vector<UpdateRecord*> RequestTable::InOrder() {
  std::vector<UpdateRecord*> records;
  for (auto& [sequence, record] : records_) records.push_back(&record);
  return records;
}

std::vector<UpdateRecord*> RequestTable::Open() {
  std::vector<UpdateRecord*> records;
  for (auto& [sequence, record] : open_) records.push_back(record);
  return records;
}

}  // namespace stemma::server
