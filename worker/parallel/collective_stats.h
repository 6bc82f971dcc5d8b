// What a rank's collectives have cost, by name.
//
// Thread safety: safe; the engine thread adds, whoever reports metrics reads.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

namespace stemma::worker {

struct CollectiveTotals {
  int64_t calls = 0;   // that succeeded
  int64_t bytes = 0;   // by CollectiveBytes
  int64_t sent = 0;    // of these, without what only came: a send and its receive are one message
  double seconds = 0;  // that the caller was held, in the start and in the wait; what ran beside compute is not in it
};

class CollectiveStats {
 public:
  // `came`: the call was a receive.
  void Add(const std::string& name, int64_t bytes, double seconds, bool came = false);
  std::map<std::string, CollectiveTotals> Read() const;
  int64_t BytesOf(const std::string& name) const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, CollectiveTotals> totals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace stemma::worker
