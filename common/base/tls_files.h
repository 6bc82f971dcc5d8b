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

// Checks the files as they are now: that those are there which the side needs, that they can be read and parsed, that
// the key is the certificate's and that others than its file's owner and group may not read it, that the certificates
// of `cert` and one of `ca` are valid at `now`. Returns when the first certificate of `cert` ends; without `cert`
// never. Errors: InvalidArgument - names the option, the file and what to do.
absl::StatusOr<absl::Time> CheckTlsFiles(const TlsFiles& files, TlsSide side, absl::Time now);

}  // namespace stemma
