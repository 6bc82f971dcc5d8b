// How a worker and its server show each other that they have the workers' secret, which neither of them sends: whoever
// else stands at the server's address learns nothing by which it could be a worker, and no worker obeys it.
//
//   worker -> server   kNonceMetadata: W                          the server ends this stream, and says
//   server -> worker   kNonceMetadata: S, kProofMetadata: HMAC-SHA-256(secret, "server" W S)
//   worker -> server   kNonceMetadata: S, kProofMetadata: HMAC-SHA-256(secret, "worker" S)
//                     on the stream that stays
//
// Both are metadata of gRPC: nothing of a stream is read before its proof is.
#pragma once

#include <string>
#include <string_view>

namespace stemma {

inline constexpr char kNonceMetadata[] = "stemma-nonce", kProofMetadata[] = "stemma-proof";

// Returns 64 hex digits that nobody can guess.
std::string NewNonce();
bool IsNonce(std::string_view text);

// Return 64 hex digits. What differs in a character has another proof.
std::string ServerProof(std::string_view secret, std::string_view worker_nonce, std::string_view server_nonce);
std::string WorkerProof(std::string_view secret, std::string_view server_nonce);

}  // namespace stemma
