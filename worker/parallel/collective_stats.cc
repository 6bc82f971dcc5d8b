#include "worker/parallel/collective_stats.h"

namespace stemma::worker {

void CollectiveStats::Add(const std::string& name, int64_t bytes, double seconds, bool came) {
  MutexLock lock(&mutex_);
  CollectiveTotals& totals = totals_[name];
  ++totals.calls;
  totals.bytes += bytes;
  if (!came) totals.sent += bytes;
  totals.seconds += seconds;
}

int64_t CollectiveStats::BytesOf(const std::string& name) const {
  MutexLock lock(&mutex_);
  const auto found = totals_.find(name);
  return found == totals_.end() ? 0 : found->second.bytes;
}

std::map<std::string, CollectiveTotals> CollectiveStats::Read() const {
  MutexLock lock(&mutex_);
  return totals_;
}

}  // namespace stemma::worker
