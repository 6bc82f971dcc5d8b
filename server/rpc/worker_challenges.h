// The nonces that the server gives to those who say that they are workers, each good for one proof
// (common/base/worker_proof.h). Thread-safe. Those that were given and not used cost nothing: anybody may ask for one.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace stemma::server {

class WorkerChallenges {
 public:
  explicit WorkerChallenges(std::string secret);

  struct Challenge {
    std::string nonce, proof;
  };
  // `now`: SteadyNow. REQUIRES: IsNonce(worker_nonce).
  Challenge Make(std::string_view worker_nonce, absl::Time now) const;

  // Checks a worker's proof, and uses up its nonce. Errors: Unauthenticated.
  absl::Status Take(std::string_view nonce, std::string_view proof, absl::Time now);

 private:
  // The nonce that is given in this span of time for a part that is drawn.
  std::string NonceOf(std::string_view drawn, int64_t span) const;
  bool IsOurs(std::string_view nonce, int64_t span) const;

  const std::string secret_;
  const std::string key_;  // of the nonces of this process
  Mutex mutex_;
  absl::flat_hash_set<std::string> used_ ABSL_GUARDED_BY(mutex_);                   // by proofs that were right
  std::deque<std::pair<int64_t, std::string>> used_order_ ABSL_GUARDED_BY(mutex_);  // by the span
};

}  // namespace stemma::server
