#include "tests/bench/copy_engines.h"

namespace stemma::testing {

RecordingCopyEngine::RecordingCopyEngine() {
  copies_.Observe([this](const CopyTimes& times) { NoteTimes(times); });
}

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
  CopyRecord& record = records_[ticket];  // the copy may have ended
  record.out = out;
  record.host = host;
  return ticket;
}

void RecordingCopyEngine::NoteTimes(const CopyTimes& times) {
  if (times.kind == CopyTimes::Kind::kWait) return;
  MutexLock lock(&mutex_);
  CopyRecord& record = records_[times.ticket];
  record.begun_s = times.begun_s;
  record.ended_s = times.ended_s;
  ended_.push_back(times.ticket);
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
