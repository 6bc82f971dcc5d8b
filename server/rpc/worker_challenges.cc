#include "server/rpc/worker_challenges.h"

#include "absl/strings/str_cat.h"
#include "common/base/worker_proof.h"
#include "common/base/worker_secret.h"

namespace stemma::server {
namespace {

// A nonce is good for the span in which it was given and the next one.
constexpr absl::Duration kSpan = absl::Seconds(60);
constexpr size_t kDrawnCharacters = 32;  // of a nonce's 64; the others say that it is ours

int64_t SpanOf(absl::Time now) { return (now - absl::UnixEpoch()) / kSpan; }

}  // namespace

WorkerChallenges::WorkerChallenges(std::string secret) : secret_(std::move(secret)), key_(NewNonce()) {}

std::string WorkerChallenges::NonceOf(std::string_view drawn, int64_t span) const {
  const std::string mac = WorkerProof(key_, absl::StrCat(std::string(drawn), " ", span));
  return absl::StrCat(std::string(drawn), mac.substr(0, kDrawnCharacters));
}

bool WorkerChallenges::IsOurs(std::string_view nonce, int64_t span) const {
  return SameSecret(nonce, NonceOf(nonce.substr(0, kDrawnCharacters), span));
}

WorkerChallenges::Challenge WorkerChallenges::Make(std::string_view worker_nonce, absl::Time now) const {
  Challenge challenge;
  challenge.nonce = NonceOf(NewNonce().substr(0, kDrawnCharacters), SpanOf(now));
  challenge.proof = ServerProof(secret_, worker_nonce, challenge.nonce);
  return challenge;
}

absl::Status WorkerChallenges::Take(std::string_view nonce, std::string_view proof, absl::Time now) {
  if (!SameSecret(proof, WorkerProof(secret_, nonce))) {
    return absl::UnauthenticatedError("the worker's secret is not the server's");
  }
  const int64_t span = SpanOf(now);
  if (!IsNonce(nonce) || (!IsOurs(nonce, span) && !IsOurs(nonce, span - 1))) {
    return absl::UnauthenticatedError("its proof is of a nonce that this server has not given, or is too old");
  }
  MutexLock lock(&mutex_);
  while (!used_order_.empty() && used_order_.front().first < span - 1) {
    used_.erase(used_order_.front().second);
    used_order_.pop_front();
  }
  if (!used_.insert(std::string(nonce)).second) {
    return absl::UnauthenticatedError("its proof was used before");
  }
  used_order_.emplace_back(span, std::string(nonce));
  return absl::OkStatus();
}

}  // namespace stemma::server
