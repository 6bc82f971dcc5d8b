// The files by which one side of a connection knows itself and the other in TLS: PEM, read again when they change.
//
// A server has a certificate and its key, and may ask clients for theirs, signed by a CA. A client has the CA of its
// server, and may have a certificate and a key of its own. No files: plaintext.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace stemma {

// Names of the options, in programs and in errors.
inline constexpr char kTlsCertOption[] = "--tls-cert", kTlsKeyOption[] = "--tls-key", kTlsCaOption[] = "--tls-ca";

struct TlsFiles {
  std::string cert;  // this side's certificate, then those between it and its CA's
  std::string key;   // the certificate's private key, not encrypted
  std::string ca;    // of those whose signature the other side's certificate must have

  bool any() const { return !cert.empty() || !key.empty() || !ca.empty(); }
};

enum class TlsSide { kServer, kClient };

// When the certificate that ends first does.
struct TlsValidity {
  absl::Time ends = absl::InfiniteFuture();
  absl::Duration lasts = absl::InfiniteDuration();  // from its begin to its end
};

// Checks the files as they are now: that those are there which the side needs, that they can be read and parsed, that
// the first certificate of `cert` and one of `ca` are valid at `now`, that the key is that certificate's and that
// others than its file's owner and group may not read it. A server's certificate names hosts, and has a key that every
// client can check. Returns the validity of the certificate, or of the last one of `ca`. Errors: InvalidArgument -
// names the option, the file and what to do.
absl::StatusOr<TlsValidity> CheckTlsFiles(const TlsFiles& files, TlsSide side, absl::Time now);

// Checks that a certificate in PEM is valid at `now`. A session that is resumed shows its peer's once more, whose end
// OpenSSL does not look at then. Errors: Unauthenticated.
absl::Status CheckPeerCertificate(const std::string& pem, absl::Time now);

}  // namespace stemma
