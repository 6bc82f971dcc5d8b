#include "common/base/worker_proof.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/worker_secret.h"
#include "glog/logging.h"

namespace stemma {
namespace {

constexpr size_t kNonceCharacters = 64;

std::string Hmac(std::string_view secret, const std::string& text) {
  std::array<unsigned char, 32> mac;
  unsigned int size = 0;
  CHECK(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &size) != nullptr);
  CHECK_EQ(size, mac.size());
  return absl::BytesToHexString({reinterpret_cast<const char*>(mac.data()), mac.size()});
}

}  // namespace

std::string NewNonce() { return NewWorkerSecret(); }

bool IsNonce(std::string_view text) {
  return text.size() == kNonceCharacters && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isxdigit(static_cast<unsigned char>(c));
         });
}

std::string ServerProof(std::string_view secret, std::string_view worker_nonce, std::string_view server_nonce) {
  return Hmac(secret, absl::StrCat("server ", std::string(worker_nonce), " ", std::string(server_nonce)));
}

std::string WorkerProof(std::string_view secret, std::string_view server_nonce) {
  return Hmac(secret, absl::StrCat("worker ", std::string(server_nonce)));
}

}  // namespace stemma
