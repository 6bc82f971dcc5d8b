// What all requests that are still being received may hold together: limits.receiving_bytes. One budget for a server.
//
// Thread safety: safe.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"

namespace stemma::server {

class ReceivingBudget {
 public:
  explicit ReceivingBudget(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // What one stream holds; given back when the share ends.
  class Share {
   public:
    explicit Share(ReceivingBudget& budget) : budget_(budget) {}
    ~Share() { Release(); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // The stream holds `bytes` now. Errors: ResourceExhausted LIMIT_EXCEEDED - more than all may hold; QUEUE_FULL - the
    // others leave too little, try again later. After an error the share is as before.
    absl::Status Set(uint64_t bytes);
    void Release();

   private:
    ReceivingBudget& budget_;
    uint64_t bytes_ = 0;
  };

 private:
  const uint64_t bytes_max_;
  Mutex mutex_;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace stemma::server
