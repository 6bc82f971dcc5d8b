#include "tests/bench/copy_engines.h"

#include "common/base/clock.h"

namespace stemma::testing {

CopyTicket RecordingCopyEngine::StartCopyOut(std::vector<CopySpan> spans) {
  const void* host = spans.at(0).to;
  return NoteStart(copies_.StartCopyOut(std::move(spans)), /*out=*/true, host);
}

CopyTicket RecordingCopyEngine::StartCopyIn(std::vector<CopySpan> spans) {
  const void* host = spans.at(0).from;
  return NoteStart(copies_.StartCopyIn(std::move(spans)), /*out=*/false, host);
}

CopyTicket RecordingCopyEngine::NoteStart(CopyTicket ticket, bool out, const void* host) {
  MutexLock lock(&mutex_);
  CopyRecord& record = records_[ticket];  // the copy may have begun
  record.out = out;
  record.host = host;
  return ticket;
}

void RecordingCopyEngine::NoteTime(CopyTicket ticket, bool ended) {
  const double now_s = RealClock().MonotonicSeconds();
  MutexLock lock(&mutex_);
  CopyRecord& record = records_[ticket];
  (ended ? record.ended_s : record.begun_s) = now_s;
  if (ended) ended_.push_back(ticket);
}

std::vector<CopyRecord> RecordingCopyEngine::TakeRecords() {
  MutexLock lock(&mutex_);
  std::vector<CopyRecord> records;
  for (const CopyTicket ticket : std::exchange(ended_, {})) {
    records.push_back(records_.at(ticket));
    records_.erase(ticket);
  }
  return records;
}

}  // namespace stemma::testing
